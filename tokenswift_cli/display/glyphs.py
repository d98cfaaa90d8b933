"""Plain characters for terminals whose font has no blocks, dots and round corners (the Linux console)."""

from __future__ import annotations

from collections.abc import Mapping

_LOOKS_LIKE = {
    "╭╮╰╯├┤┬┴┼": "+",
    "─": "-",
    "━": "=",
    "│": "|",
    "·": "-",
    "…": "~",
    "⠋⠹⠼⠦⠇": "*",
    "⠙⠸⠴⠧⠏": "+",
}
# Heights told apart without blocks: the more ink, the higher.
_BLOCKS = dict(zip("▁▂▃▄▅▆▇█", "._-~=+*#", strict=True))

# For str.translate; every character is replaced by one as wide.
PLAIN_GLYPHS: Mapping[int, str] = str.maketrans(
    {**{glyph: plain for glyphs, plain in _LOOKS_LIKE.items() for glyph in glyphs}, **_BLOCKS}
)
