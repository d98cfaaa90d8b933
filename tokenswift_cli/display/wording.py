"""How numbers, sizes, times and foreign text are worded; the same in all displays."""

from __future__ import annotations

import math
import shlex
import unicodedata

from tokenswift_cli.events import RunFinished, RunStarted

_FINISHED = {
    "length": "Done: the requested length is reached",
    "eos": "Done: the model ended the text",
    "stop": "Done: a stop string ended the text",
    "loop": "Stopped: the text repeats itself",
    "interrupted": "Interrupted: everything so far is saved",
}
_RESUME = "resume with"
# What the resume command does to a run that has ended.
_NEXT = {"length": "extend with", "loop": "go on with"}


def duration(seconds: float | None) -> str:
    """45s, 20m31s, 3h02m, 2d04h; "-" if unknown."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 48 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def about(seconds: float | None) -> str:
    """A time that is only estimated, no finer than it can be known: 45s, 3m20s, 21m, 3h05m, 2d04h."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "-"
    if seconds < 60:
        return duration(seconds)
    if seconds < 600:
        return duration(round(seconds / 10) * 10)
    if seconds < 3570:
        return f"{round(seconds / 60)}m"
    return duration(round(seconds / 300) * 300)


def size(number_of_bytes: int) -> str:
    """Bytes as MiB below one GiB, else GiB; "-" for 0 (not measured)."""
    if number_of_bytes <= 0:
        return "-"
    mebibytes = number_of_bytes / 2**20
    return f"{mebibytes:.0f} MiB" if mebibytes < 1000 else f"{mebibytes / 1024:.2f} GiB"


def number(value: float | None, digits: int) -> str:
    """A fixed number of digits after the point; "-" if unknown or not finite."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def speed(tokens_per_second: float | None) -> str:
    """61.2, and 0.35 where one digit would say little; "-" if unknown."""
    return number(tokens_per_second, 2 if tokens_per_second is not None and tokens_per_second < 1 else 1)


def percent(share: float) -> str:
    """85%; <1% for what is there but rounds to nothing."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def visible(text: str, *, line_end: str = "\N{SYMBOL FOR NEWLINE}") -> str:
    """``text`` with every control and format character replaced by a visible one.

    Model output and file names may hold escape sequences, carriage returns or direction marks;
    none of them reaches the terminal. ``line_end`` stands for line ends.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible_character(character, line_end) for character in text.replace("\r\n", "\n"))


def _visible_character(character: str, line_end: str) -> str:
    if character.isprintable():
        return character
    if character in "\n\u2028\u2029":
        return line_end
    code = ord(character)
    if character == "\t":
        return "    "
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures block
    if code == 0x7F:
        return "\N{SYMBOL FOR DELETE}"
    category = unicodedata.category(character)
    if category == "Zs":
        return " "
    # Zero-width and direction marks (Cf) vanish; what is left has no shape of its own.
    return "" if category == "Cf" else "\N{REPLACEMENT CHARACTER}"


def finished_headline(finished: RunFinished) -> str:
    """What ended the run, as one phrase."""
    return _FINISHED.get(finished.finish_reason, f"Ended: {finished.finish_reason}")


def summary(finished: RunFinished) -> list[tuple[str, str]]:
    """The result of a run as (label, value) pairs, in the order they are shown."""
    tokens = f"{finished.tokens:,}"
    if finished.session_tokens != finished.tokens:
        tokens += f" ({finished.session_tokens:,} in this session)"
    lines = [("run directory", finished.run_dir), ("tokens", tokens)]
    if finished.tokens_per_second is not None:
        rate = speed(finished.tokens_per_second)
        lines.append(("speed", f"{rate} tok/s over {duration(finished.decode_seconds)}"))
    if finished.acceptance_rate is not None:
        length = number(finished.mean_acceptance_length, 1)
        lines.append(
            ("acceptance", f"{number(finished.acceptance_rate, 2)}, {length} tokens per verification")
        )
    if finished.distinct is not None:
        lines.append(("distinct-1..4", "  ".join(number(share, 2) for share in finished.distinct)))
    if finished.peak_process_bytes > 0:
        lines.append(("peak memory", size(finished.peak_process_bytes)))
    if finished.tokens > 0:
        lines.append(("report", report_command(finished.run_dir)))
    if finished.resume_command is not None:
        lines.append((_NEXT.get(finished.finish_reason, _RESUME), finished.resume_command))
    return lines


def report_command(run_dir: str) -> str:
    """The command that shows the run as a page, quoted for a shell."""
    return f"tokenswift report {shlex.quote(run_dir)}"


def unfinished(started: RunStarted) -> list[tuple[str, str]]:
    """Where a run is that ended without a result, and how to go on, as (label, value) pairs."""
    command = f"tokenswift resume {shlex.quote(started.run_dir)}"
    return [("run directory", started.run_dir), (_RESUME, command)]
