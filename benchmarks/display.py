"""What the dashboard costs: CPU time per picture, and per second of decoding.

python benchmarks/display.py --tokens-per-second 100 --seconds 60

Feeds a dashboard the events of a run at the pace of a real one (text after each step, ten snapshots a second,
four pictures a second), but without waiting, and counts the CPU time of this process. A display that takes a
share s of one core can slow decoding by s at most.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator

import psutil

from tokenswift_cli.display.dashboard import REDRAWS_PER_SECOND, Dashboard
from tokenswift_cli.events import DrafterShare, Event, Progress, RunStarted, TextAppended

SIZES = ((80, 24), (120, 40), (40, 15))
SNAPSHOTS_PER_SECOND = 10
TEXT = "the harbour master put down his pen and looked at them for a while , outside a bell was ringing"
WIDE_TEXT = "港の 役人は ペンを 置いて 二人を 見た 。 外では 鐘が 鳴って いた"


def events_of_a_second(second: int, rate: int, words: list[str], rng: random.Random) -> Iterator[Event]:
    """The text and the snapshots of one second of decoding at ``rate`` tokens/s."""
    written = second * rate
    for part in range(SNAPSHOTS_PER_SECOND):
        for _ in range(rate // SNAPSHOTS_PER_SECOND):
            yield TextAppended(rng.choice(words) + (" " if rng.random() < 0.98 else "\n\n"))
        tokens = written + (part + 1) * rate // SNAPSHOTS_PER_SECOND
        seconds = second + (part + 1) / SNAPSHOTS_PER_SECOND
        shares = {"suffix": 0.5, "ngram": 0.3, "heads": 0.15, "self": 0.05}
        drafters = {
            name: DrafterShare(int(share * tokens), int(share * tokens * 0.6))
            for name, share in shares.items()
        }
        yield Progress(
            tokens=tokens,
            max_tokens=100_000,
            session_tokens=tokens,
            decode_seconds=seconds,
            tokens_per_second=float(rate),
            recent_tokens_per_second=rate * rng.uniform(0.8, 1.2),
            speedup=1.4,
            acceptance_rate=0.6,
            mean_acceptance_length=2.1,
            distinct=(0.21, 0.83, 0.95, 0.99),
            drafters=drafters,
            kv_bytes=tokens << 14,
            process_bytes=(1 << 30) + (tokens << 14),
            eta_seconds=(100_000 - tokens) / rate,
        )


def cpu_seconds(
    columns: int, lines: int, rate: int, seconds: int, words: list[str]
) -> tuple[float, float, int]:
    """CPU seconds of taking the events and of drawing, and the pictures drawn."""
    rng = random.Random(1)
    now = [0.0]
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        dashboard = Dashboard(
            nowhere, redraws_per_second=0, clock=lambda: now[0], size=lambda: (columns, lines)
        )
        dashboard.handle(RunStarted("runs/x", "smollm2-135m", "cpu", "float32", "auto", 285, 100_000, 0, 7))
        taking = drawing = 0.0
        pictures = 0
        for second in range(seconds):
            events = list(events_of_a_second(second, rate, words, rng))
            per_picture = -(-len(events) // int(REDRAWS_PER_SECOND))
            for first in range(0, len(events), per_picture):
                batch = events[first : first + per_picture]
                taking += measured(lambda batch=batch: [dashboard.handle(event) for event in batch])
                now[0] += 1.0 / REDRAWS_PER_SECOND
                drawing += measured(dashboard.draw)
                pictures += 1
        dashboard.close()
    return taking, drawing, pictures


def measured(action: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    before = time.process_time()
    action()
    return time.process_time() - before


def snapshot_seconds(repeats: int = 200) -> float:
    """CPU seconds of reading the memory in use, which a run does for each snapshot."""
    process = psutil.Process()
    return measured(lambda: [process.memory_info() for _ in range(repeats)]) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens-per-second", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=60, help="seconds of decoding to show")
    arguments = parser.parse_args()
    print("| terminal | text | CPU ms per picture | CPU ms per second of decoding | share of one core |")
    print("|---|---|---|---|---|")
    for columns, lines in SIZES:
        for name, words in (("latin", TEXT.split()), ("wide", WIDE_TEXT.split())):
            taking, drawing, pictures = cpu_seconds(
                columns, lines, arguments.tokens_per_second, arguments.seconds, words
            )
            per_second = (taking + drawing) / arguments.seconds
            print(
                f"| {columns}x{lines} | {name} | {1e3 * drawing / pictures:.2f} | {1e3 * per_second:.1f} | "
                f"{per_second:.2%} |",
                flush=True,
            )
    print(f"\nMemory reading of a snapshot: {1e6 * snapshot_seconds():.0f} us")


if __name__ == "__main__":
    main()
