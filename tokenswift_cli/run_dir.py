"""The run directory: everything a run leaves on disk, safe against kill -9, power cuts and full disks.

Every change follows one order: data appended and flushed, then a manifest that vouches for it put in
place atomically, then the oldest manifest removed. So at any instant the newest manifest on disk describes
data on disk, and what lies behind it is a torn tail that :meth:`RunDirectory.recover` cuts off.

Knows nothing of models, tokenizers or configuration: text, ids and JSON only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from tokenswift_cli import durable, run_layout
from tokenswift_cli.checkpoints import CheckpointStore, LoadedManifests
from tokenswift_cli.disk_errors import resume_command, telling
from tokenswift_cli.errors import ResumeRefusedError, RunDirectoryError
from tokenswift_cli.growing_file import GrowingFile, encode_ids, encode_record
from tokenswift_cli.lock import RunLock
from tokenswift_cli.manifest import BORDER_DIGITS, Border, Manifest, plain_json
from tokenswift_cli.recovery import Recovery, restore
from tokenswift_cli.run_contents import RunContents, new_contents, read_contents, sha256
from tokenswift_cli.run_creation import create_run
from tokenswift_cli.run_layout import default_run_path

__all__ = ["Recovery", "RunDirectory", "default_run_path"]


class RunDirectory:
    """One run on disk, locked for one writer. Use :meth:`create` or :meth:`open`; close it, or use ``with``.

    After :meth:`open`, :meth:`recover` comes first. All methods raise :class:`RunDirectoryError` when the
    disk is full, read-only or otherwise unwilling; the run stays resumable then. Calls in the wrong order
    are programming errors: RuntimeError.

    Attributes:
        path: the directory, as given.
        run_yaml: text of run.yaml.
        meta: contents of meta.json.
        prompt_text: bytes of prompt.txt.
        prompt_ids: ids of the prompt.
    """

    def __init__(
        self, path: Path, lock: RunLock, store: CheckpointStore, manifest: Manifest, contents: RunContents
    ) -> None:
        self.path = path
        self.run_yaml = contents.run_yaml
        self.meta = contents.meta
        self.prompt_text = contents.prompt_text
        self.prompt_ids = contents.prompt_ids
        self._notes = contents.notes
        self._lock = lock
        self._store = store
        self._manifest = manifest
        self._tokens = GrowingFile.holding(path / run_layout.TOKENS, b"")
        self._text = GrowingFile.holding(path / run_layout.TEXT, b"")
        self._metrics = GrowingFile.holding(path / run_layout.METRICS, b"")
        self._recovered = False
        self._text_damaged = False
        self._closed = False

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        run_yaml: str,
        meta: Mapping[str, object],
        prompt_text: bytes,
        prompt_ids: Sequence[int],
    ) -> RunDirectory:
        """Make a run directory that can be resumed from now on.

        Raises:
            UsageError: ``path`` holds a run, or other files, or is no directory.
            RunDirectoryError: another process is creating it, or the disk refuses; nothing is left behind.
            ValueError, TypeError: ``meta`` cannot be written as JSON, or an id is no uint32.
        """
        contents = new_contents(run_yaml, meta, prompt_text, prompt_ids)
        with telling(path, "start the run again; nothing was generated yet"):
            lock, store, manifest = create_run(path, contents)
        run = cls(path, lock, store, manifest, contents)
        run._recovered = True
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Lock the run in ``path`` and check what must not have changed. Call :meth:`recover` next.

        Raises:
            UsageError: ``path`` is missing or no run directory.
            ResumeRefusedError: run.yaml, meta.json or prompt.ids changed, no sound checkpoint, newer format.
            RunDirectoryError: another process writes there, or the disk refuses.
        """
        with telling(path, f"continue with `{resume_command(path)}`"):
            if refusal := run_layout.refusal_to_open(path, run_layout.kind_of(path)):
                raise refusal
            lock = RunLock.acquire(path / run_layout.LOCK)
            try:
                store = CheckpointStore(path / run_layout.CHECKPOINTS)
                newest = _load(store).sound[0]
                return cls(path, lock, store, newest, read_contents(path, newest))
            except BaseException:
                lock.release()
                raise

    @property
    def manifest(self) -> Manifest:
        """What is durable now (before :meth:`recover`: what the newest sound manifest says)."""
        return self._manifest

    def recover(self) -> Recovery:
        """Take every file back to the last good point and go on from there; see :class:`Recovery`."""
        self._require_open()
        with self.telling():
            self._require_lock()
            loaded = _load(self._store)
            restored = restore(self.path, loaded.sound, loaded.problems)
            self._manifest = restored.manifest
            self._tokens, self._text, self._metrics = restored.tokens, restored.text, restored.metrics
            self._text_damaged = restored.recovery.text_damaged
            self._recovered = True
            # A damaged text has no place in a manifest: rewrite_text writes that one.
            if restored.manifest_outdated and not self._text_damaged:
                self._commit(self._manifest)
        return replace(restored.recovery, messages=(*self._notes, *restored.recovery.messages))

    def append_chunk(
        self,
        tokens: Sequence[int],
        text: str,
        metrics: Mapping[str, object],
        *,
        finish_reason: str | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> Manifest:
        """Make one chunk durable. On return nothing of it can be lost any more; on an error it is not there.

        ``tokens`` may be empty (a finish record). ``extra`` None keeps the runner's last stored state.
        ``metrics`` becomes one line of metrics.jsonl, with the chunk's number as "chunk".

        Raises:
            RunDirectoryError: the disk refuses; the files are back at the last checkpoint.
            ValueError, TypeError: an argument cannot be stored; nothing was written.
        """
        self._require_appendable()
        chunk = self._manifest.chunk + 1
        growth = (encode_ids(tokens), text.encode("utf-8"), encode_record(metrics, chunk))
        files = (self._tokens, self._text, self._metrics)
        grown_tokens, grown_text, grown_metrics = (
            file.extended(data) for file, data in zip(files, growth, strict=True)
        )
        token_count = self._manifest.token_count + len(tokens)
        border = Border(token_count, grown_tokens.sha256[:BORDER_DIGITS])
        manifest = replace(
            self._manifest,
            sequence=self._store.next_number(),
            chunk=chunk,
            token_count=token_count,
            tokens_sha256=grown_tokens.sha256,
            text_bytes=grown_text.size,
            text_sha256=grown_text.sha256,
            metrics_bytes=grown_metrics.size,
            metrics_sha256=grown_metrics.sha256,
            borders=(*self._manifest.borders, border),
            finish_reason=finish_reason,
            extra=self._manifest.extra if extra is None else plain_json(extra),
        )
        with self.telling():
            self._require_lock()
            for file in files:
                durable.require_size(file.path, file.size)
            try:
                for file, data in zip(files, growth, strict=True):
                    file.append(data)
                self._store.write(manifest)
            except BaseException:
                self._cut_back(manifest.sequence)
                raise
        self._tokens, self._text, self._metrics = grown_tokens, grown_text, grown_metrics
        self._manifest = manifest
        self._store.prune()
        return manifest

    def rewrite_text(self, text: str) -> None:
        """Replace output.txt by ``text``, the decoded tokens, after recovery found it damaged."""
        self._require_recovered()
        data = text.encode("utf-8")
        with self.telling():
            self._require_lock()
            durable.atomic_write(self._text.path, data)
            self._text = GrowingFile.holding(self._text.path, data)
            self._text_damaged = False
            self._commit(self._manifest)

    def update_run_yaml(self, text: str) -> None:
        """Replace run.yaml, for a run that is extended; a kill at any instant leaves it old or new."""
        self._require_appendable()
        name = run_layout.RUN_YAML
        path = self.path / name
        data = text.encode("utf-8")
        with self.telling():
            self._require_lock()
            # From the disk, not from memory: an earlier failed update may have got as far as the file.
            old, new = sha256(durable.read_file(path)), sha256(data)
            hashes = {**self._manifest.file_hashes, name: (old, new)}
            # Both kept manifests accept both files before run.yaml changes: one of them may get damaged.
            for _ in range(2):
                self._commit(replace(self._manifest, file_hashes=hashes))
            durable.atomic_write(path, data)
            self.run_yaml = text
            self._commit(replace(self._manifest, file_hashes={**hashes, name: (new,)}))

    def close(self) -> None:
        """Give the lock back; harmless when called twice."""
        self._closed = True
        self._lock.release()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _commit(self, manifest: Manifest) -> None:
        """A new manifest for files as they are now; the chunk stays the same."""
        committed = replace(
            manifest,
            sequence=self._store.next_number(),
            text_bytes=self._text.size,
            text_sha256=self._text.sha256,
            metrics_bytes=self._metrics.size,
            metrics_sha256=self._metrics.sha256,
        )
        self._store.write(committed)
        self._manifest = committed
        self._store.prune()

    def _cut_back(self, number: int) -> None:
        """Undo a failed append as far as the disk lets us; :meth:`recover` does what is left."""
        with contextlib.suppress(OSError):
            self._store.withdraw(number)
            for file in (self._tokens, self._text, self._metrics):
                file.cut()

    def telling(self) -> AbstractContextManager[None]:
        """Turns an ``OSError`` of the block into a :class:`RunDirectoryError` that says what is safe."""
        safe = f"the first {self._manifest.token_count} tokens are safe"
        return telling(self.path, f"continue with `{resume_command(self.path)}`; {safe}")

    def _require_lock(self) -> None:
        if not self._lock.held:
            raise RunDirectoryError(
                f"{self._lock.path} was removed or replaced, so another process may write to this run. "
                f"Make sure that none does, then continue with `{resume_command(self.path)}`."
            )

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("the run directory is closed")

    def _require_recovered(self) -> None:
        self._require_open()
        if not self._recovered:
            raise RuntimeError("call recover() before changing an opened run directory")

    def _require_appendable(self) -> None:
        self._require_recovered()
        if self._text_damaged:
            raise RuntimeError("call rewrite_text() before appending: output.txt is damaged")


def _load(store: CheckpointStore) -> LoadedManifests:
    loaded = store.load()
    if not loaded.sound:
        raise ResumeRefusedError(
            f"No checkpoint in {store.directory} can be used: {'; '.join(loaded.problems)}. "
            "Put that directory back from a copy, or start a new run in another directory."
        )
    return loaded
