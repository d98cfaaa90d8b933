"""The numbers a run is judged by: Distinct-n, acceptance, speed, memory.

Nothing here reads a clock or rescans the text: seconds are passed in, tokens are counted once.
"""

from __future__ import annotations

import contextlib
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Mapping

from tokenswift_cli.events import DrafterShare, Progress

RECENT_SECONDS = 10.0
ETA_SMOOTHING_SECONDS = 30.0  # half-life

_MASK = (1 << 64) - 1


class HashSet64:
    """A set of 64-bit hashes that can only grow, 16 to 32 bytes per member once it is large.

    (A Python set of integers takes about 100.) Open addressing in 256 tables that grow one by
    one, so no single insertion pays for moving the whole set.
    """

    _TABLES = 256
    _FIRST_SIZE = 16

    def __init__(self) -> None:
        self._tables = [array("Q", bytes(8 * self._FIRST_SIZE)) for _ in range(self._TABLES)]
        self._used = [0] * self._TABLES

    def __len__(self) -> int:
        return sum(self._used)

    def add(self, key: int) -> bool:
        """Insert a hash in 0 .. 2**64 - 1; True if it was not there. (0 counts as 1.)"""
        key = key or 1  # 0 marks a free slot
        index = key >> 56
        table = self._tables[index]
        slot = self._free_slot(table, key)
        if slot < 0:
            return False
        table[slot] = key
        self._used[index] += 1
        if 2 * self._used[index] > len(table):
            self._tables[index] = self._grown(table)
        return True

    @staticmethod
    def _free_slot(table: array[int], key: int) -> int:
        """The slot where ``key`` belongs, or -1 if it is in the table."""
        mask = len(table) - 1
        slot = (key >> 20) & mask
        while found := table[slot]:
            if found == key:
                return -1
            slot = (slot + 1) & mask
        return slot

    def _grown(self, table: array[int]) -> array[int]:
        larger = array("Q", bytes(2 * 8 * len(table)))
        for key in table:
            if key:
                larger[self._free_slot(larger, key)] = key
        return larger


class DistinctCounter:
    """Distinct-1..4 of a growing text: distinct n-grams / all n-grams (Li et al., 2016).

    Constant work per token. Stored: the set of token ids, and for n = 2, 3, 4 one 64-bit hash per
    distinct n-gram (at one million tokens at most about 100 MB for all three). Two n-grams share
    a hash with a chance below 1e-7 per million tokens, so the counts are exact in practice.
    """

    def __init__(self) -> None:
        self._unigrams: set[int] = set()
        self._larger = (HashSet64(), HashSet64(), HashSet64())
        self._distinct = [0, 0, 0]
        self._tokens = 0
        self._last: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of tokens counted."""
        return self._tokens

    def push(self, ids: Iterable[int]) -> None:
        """Count more token ids."""
        for token_id in ids:
            self._tokens += 1
            self._unigrams.add(token_id)
            last_four = (*self._last, token_id)
            for index, hashes in enumerate(self._larger):
                length = index + 2
                if len(last_four) < length:
                    break
                # The hash of a tuple of integers is fixed, not salted.
                if hashes.add(hash(last_four[-length:]) & _MASK):
                    self._distinct[index] += 1
            self._last = last_four[-3:]

    def values(self) -> tuple[float, float, float, float] | None:
        """Distinct-1..4, each in (0, 1]; None below four tokens, where Distinct-4 means nothing."""
        if self._tokens < 4:
            return None
        two, three, four = (self._distinct[index] / (self._tokens - 1 - index) for index in range(3))
        return len(self._unigrams) / self._tokens, two, three, four


class RunStatistics:
    """Speed and acceptance of this process's decoding, accumulated step by step.

    A step is one forward pass of the target that committed tokens. The clock is the sum of the
    steps' seconds, so pauses (checkpoints, a stopped process) distort no rate.

    - acceptance rate = accepted drafted tokens / drafted positions
    - mean acceptance length = committed tokens per verification, the bonus token included;
      a verification is a step that had something drafted
    - tokens per forward = committed tokens per step, drafted or not
    """

    def __init__(
        self, *, recent_seconds: float = RECENT_SECONDS, smoothing_seconds: float = ETA_SMOOTHING_SECONDS
    ) -> None:
        self._recent_seconds = recent_seconds
        self._smoothing_seconds = smoothing_seconds
        self.session_tokens = 0
        self.decode_seconds = 0.0
        self._steps = 0
        self._verifications = 0
        self._verified_tokens = 0
        self._shares: dict[str, tuple[int, int]] = {}
        self._drafted = 0
        self._accepted = 0
        self._recent: deque[tuple[float, int]] = deque()  # (seconds, tokens) of the last steps
        self._recent_sum = [0.0, 0.0]
        self._smooth_seconds = 0.0
        self._smooth_tokens = 0.0

    def record(
        self,
        *,
        committed: int,
        seconds: float,
        drafted: int = 0,
        accepted: int = 0,
        shares: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """Add one step: tokens it committed, its seconds, and what the drafters had drafted.

        ``drafted`` counts positions on the longest drafted path; ``accepted`` those committed;
        ``shares`` holds the same two numbers by drafter.

        Raises:
            ValueError: counts that cannot be (negative, or more accepted than drafted).
        """
        if committed < 0 or seconds < 0 or not 0 <= accepted <= drafted:
            raise ValueError(f"impossible step: {committed=} {seconds=} {drafted=} {accepted=}")
        self.session_tokens += committed
        self.decode_seconds += seconds
        self._steps += 1
        if drafted:
            self._verifications += 1
            self._verified_tokens += committed
            self._drafted += drafted
            self._accepted += accepted
            for name, (drafted_by, accepted_by) in (shares or {}).items():
                before = self._shares.get(name, (0, 0))
                self._shares[name] = (before[0] + drafted_by, before[1] + accepted_by)
        self._record_recent(seconds, committed)
        # A ratio of two sums that forget at the same pace: it begins as the plain mean, weighs by
        # time and never jumps.
        keep = 2.0 ** (-seconds / self._smoothing_seconds)
        self._smooth_seconds = self._smooth_seconds * keep + seconds
        self._smooth_tokens = self._smooth_tokens * keep + committed

    def _record_recent(self, seconds: float, committed: int) -> None:
        self._recent.append((seconds, committed))
        total = self._recent_sum
        total[0] += seconds
        total[1] += committed
        # One step may be longer than the whole window: the last one always stays.
        while len(self._recent) > 1 and total[0] - self._recent[0][0] >= self._recent_seconds:
            old_seconds, old_tokens = self._recent.popleft()
            total[0] -= old_seconds
            total[1] -= old_tokens

    @property
    def tokens_per_second(self) -> float | None:
        """Over all decoding of this session; None before any."""
        return self.session_tokens / self.decode_seconds if self.decode_seconds > 0 else None

    @property
    def recent_tokens_per_second(self) -> float | None:
        """Over about the last ten seconds of decoding; None before any."""
        seconds, tokens = self._recent_sum
        return tokens / seconds if self.decode_seconds > 0 and seconds > 0 else None

    @property
    def acceptance_rate(self) -> float | None:
        """In [0, 1]; None while nothing was drafted."""
        return self._accepted / self._drafted if self._drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per verification; None while nothing was drafted."""
        return self._verified_tokens / self._verifications if self._verifications else None

    @property
    def tokens_per_forward(self) -> float | None:
        """Tokens per step, plain steps included."""
        return self.session_tokens / self._steps if self._steps else None

    @property
    def drafters(self) -> dict[str, DrafterShare]:
        """Each drafter's share, by name (a copy)."""
        return {name: DrafterShare(*share) for name, share in self._shares.items()}

    def eta_seconds(self, remaining_tokens: int) -> float | None:
        """Seconds of decoding left at the smoothed rate; None until there is a rate."""
        if remaining_tokens <= 0:
            return 0.0
        if self._smooth_tokens <= 0 or self._smooth_seconds <= 0:
            return None
        return remaining_tokens * self._smooth_seconds / self._smooth_tokens

    def progress(
        self,
        *,
        tokens: int,
        max_tokens: int,
        distinct: tuple[float, float, float, float] | None,
        speedup: float | None = None,
        kv_bytes: int = 0,
        process_bytes: int = 0,
    ) -> Progress:
        """The snapshot that displays show; ``tokens`` counts resumed tokens too."""
        return Progress(
            tokens=tokens,
            max_tokens=max_tokens,
            session_tokens=self.session_tokens,
            decode_seconds=self.decode_seconds,
            tokens_per_second=self.tokens_per_second,
            recent_tokens_per_second=self.recent_tokens_per_second,
            speedup=speedup,
            acceptance_rate=self.acceptance_rate,
            mean_acceptance_length=self.mean_acceptance_length,
            distinct=distinct,
            drafters=self.drafters,
            kv_bytes=kv_bytes,
            process_bytes=process_bytes,
            eta_seconds=self.eta_seconds(max_tokens - tokens),
        )


def process_memory_bytes() -> int:
    """Resident memory of this process now, in bytes."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_process_memory_bytes() -> int:
    """Largest resident memory of this process so far, in bytes."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    if sys.platform == "linux":
        # Not getrusage: there a process inherits the peak of the one that started it.
        with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS reports bytes, Linux and the BSDs KiB.
    return peak if sys.platform == "darwin" else peak * 1024
