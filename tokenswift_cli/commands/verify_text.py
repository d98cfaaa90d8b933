"""The report of an audit in words: styled lines for a terminal, the same lines without style elsewhere."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from tokenswift_cli.audit.report import AuditedToken, AuditReport, Choices
from tokenswift_cli.display.wording import duration, number, visible

_GOOD, _BAD, _PLAIN = "bold green", "bold red", ""
_LISTED: Final = 5
_SHOWN_CHARACTERS: Final = 30


def report_text(report: AuditReport) -> Text:
    """What was found, one fact per line."""
    lines = [_headline(report), *_mismatch_lines(report), *_file_lines(report)]
    return Text("\n").join(lines)


def _headline(report: AuditReport) -> Text:
    choices = report.choices
    if not choices.requested:
        return Text("The run holds no generated tokens yet, so there is no choice to check.")
    said, style = "No token was checked", _PLAIN
    if choices.checked:
        said = f"{choices.matches:,} of {choices.checked:,} tokens are what the model chooses"
        style = _GOOD
    if choices.mismatches:
        said += f", {choices.mismatches:,} {'is' if choices.mismatches == 1 else 'are'} not"
        style = _BAD
    line = Text.assemble((said, style), f" ({_where(choices)}){_times(choices)}.")
    if choices.complete:
        return line
    why = "interrupted" if report.interrupted_code else choices.unreadable
    return line + Text(f" {choices.requested - choices.checked:,} were not checked: {visible(str(why))}.")


def _where(choices: Choices) -> str:
    span = f"positions {choices.first:,}-{choices.end - 1:,}"
    if choices.drawn is not None:
        return f"{choices.drawn:,} drawn from {span}, sample seed {choices.seed}"
    return span


def _times(choices: Choices) -> str:
    if not choices.checked:
        return ""
    trusted = (
        f"; {choices.restored:,} rows before and between them taken from the journal"
        if choices.restored
        else ""
    )
    if choices.drawn is not None:  # mostly reading
        return f", {duration(choices.read_seconds + choices.check_seconds)}{trusted}"
    rate = choices.tokens_per_second
    words = f", {duration(choices.check_seconds)}, {number(rate, 0)} tokens/s"
    if choices.read_seconds >= 1:
        words += f" after reading for {duration(choices.read_seconds)}"
    return words + trusted


def _mismatch_lines(report: AuditReport) -> list[Text]:
    choices = report.choices
    if not choices.measured:
        return []
    first, others = choices.measured[0], choices.measured[1 : 1 + _LISTED]
    lines = [Text.assemble("First mismatch: ", _mismatch(first))]
    if first.mismatch.near:
        lines.append(Text(f"  {_rounding(report)}"))
    if others:
        listed = ", ".join(f"{one.mismatch.position:,}" for one in others)
        more = choices.mismatches - 1 - len(others)
        lines.append(Text(f"Then: {listed}{f' and {more:,} more' if more > 0 else ''}."))
    if choices.mismatches > 1:
        lines.append(
            Text(
                "  Each token was checked behind the text as it stands: those after the first mismatch may "
                "differ only because of it."
            )
        )
    return lines


def _mismatch(one: AuditedToken) -> Text:
    found = one.mismatch
    text = "not in the vocabulary" if one.token_text is None else _quoted(one.token_text)
    how = f"not a candidate (of {found.candidates:,})"
    if found.rank is not None:
        how = f"rank {found.rank} of {found.candidates:,} candidates"
    if found.margin is not None:
        how = f"margin {found.margin:.4g} with noise, {how}"
    return Text(
        f"position {found.position:,} holds token {found.token} ({text}), the model chooses {found.chosen} "
        f"({_quoted(one.chosen_text)}); {how}."
    )


def _rounding(report: AuditReport) -> str:
    here = f"{report.device}, {report.path}"
    why = "" if report.row_invariant else ", whose last bits depend on what is computed together"
    return (
        f"So close that rounding may have decided: written on {visible(report.written_on)}, checked on "
        f"{visible(here)}{why}."
    )


def _file_lines(report: AuditReport) -> list[Text]:
    if report.sound:
        return [Text.assemble("Files: ", ("sound", _GOOD), ".")]
    return [
        Text.assemble("Files: ", ("damaged", _BAD), "."),
        *(Text(f"  {visible(problem.message)}.") for problem in report.problems),
    ]


def _quoted(text: str) -> str:
    shown = visible(text)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[:_SHOWN_CHARACTERS] + "..."
    return f'"{shown}"'
