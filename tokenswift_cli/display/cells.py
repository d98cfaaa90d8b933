"""How many terminal cells a text takes, where terminals differ the most that any of them gives it."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from rich.cells import get_character_cell_size

_WITHOUT_WIDTH = ("Mn", "Me", "Cf")  # what stands on the character before, and what is not seen


@lru_cache(maxsize=8192)
def character_cells(character: str) -> int:
    """0, 1 or 2. Some terminals give a cell to signs that others draw into the one before."""
    cells = get_character_cell_size(character)
    if cells == 0 and unicodedata.category(character) not in _WITHOUT_WIDTH:
        return 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return cells


@lru_cache(maxsize=1024)
def text_cells(text: str) -> int:
    """Cells of a text without control characters."""
    return len(text) if text.isascii() else sum(map(character_cells, text))


def first_cells(text: str, cells: int) -> str:
    """As many characters from the front as fit."""
    for index, character in enumerate(text):
        cells -= character_cells(character)
        if cells < 0:
            return text[:index]
    return text
