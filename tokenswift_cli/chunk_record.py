"""One line of metrics.jsonl: what a chunk cost and what its drafts were worth, for reports and for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tokenswift_cli.engine.engine import Step
from tokenswift_cli.metrics import RunStatistics, peak_process_memory_bytes, process_memory_bytes
from tokenswift_cli.transcript import Transcript


def record_step(statistics: RunStatistics, step: Step, committed: int, host_seconds: float) -> None:
    """Add a step to ``statistics``: how many of its tokens were committed, and what the text took besides."""
    statistics.record(
        committed=committed,
        seconds=step.draft_seconds + step.verify_seconds + host_seconds,
        drafted=step.drafted,
        accepted=step.accepted,
        shares=step.shares,
    )


class ChunkRecorder:
    """Collects the steps of one chunk. Times are seconds, sizes bytes."""

    def __init__(self) -> None:
        self.statistics = RunStatistics()
        self._draft_seconds = 0.0
        self._verify_seconds = 0.0
        self._host_seconds = 0.0
        self._rows = 0
        self._steps = 0
        self._depths: list[list[int]] = []
        self._plain_seconds: float | None = None

    def add(self, step: Step, committed: int, host_seconds: float) -> None:
        """Take in a step; see :func:`record_step`."""
        record_step(self.statistics, step, committed, host_seconds)
        self._draft_seconds += step.draft_seconds
        self._verify_seconds += step.verify_seconds
        self._host_seconds += host_seconds
        self._rows += step.rows
        self._steps += 1
        if step.plain_seconds is not None:
            self._plain_seconds = step.plain_seconds
        while len(self._depths) < step.drafted:
            self._depths.append([0, 0])
        for depth in range(step.drafted):
            self._depths[depth][0] += 1
            self._depths[depth][1] += depth < step.accepted

    def record(
        self, *, tokens: int, transcript: Transcript, kv_bytes: int, facts: Mapping[str, object]
    ) -> dict[str, object]:
        """The line, without the chunk's number.

        Args:
            tokens: generated so far, all chunks.
            transcript: of the text.
            kv_bytes: of the committed rows.
            facts: what else there is to say about this chunk.
        """
        statistics = self.statistics
        return {
            "tokens": tokens,
            "chunk_tokens": statistics.session_tokens,
            "steps": self._steps,
            "rows": self._rows,
            "decode_seconds": statistics.decode_seconds,
            "draft_seconds": self._draft_seconds,
            "verify_seconds": self._verify_seconds,
            "host_seconds": self._host_seconds,
            "plain_step_seconds": self._plain_seconds,
            "tokens_per_second": statistics.tokens_per_second,
            "acceptance_rate": statistics.acceptance_rate,
            "mean_acceptance_length": statistics.mean_acceptance_length,
            "drafters": {
                name: {"drafted": share.drafted, "accepted": share.accepted}
                for name, share in statistics.drafters.items()
            },
            "depths": self._depths,
            "distinct": transcript.distinct.values(),
            "novelty": transcript.novelty,
            "kv_bytes": kv_bytes,
            "process_bytes": process_memory_bytes(),
            "peak_process_bytes": peak_process_memory_bytes(),
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
            **facts,
        }
