"""What the exit status of ``tokenswift`` says, for people: the numbers belong to the errors and signals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXIT_CODE_MEANINGS: Final[Mapping[int, str]] = {
    0: "Done.",
    1: "Failed. `doctor`: something is missing. `bench`, `verify`: texts differ.",
    2: "Wrong usage or configuration.",
    3: "Refused: the model or what decides the text is not as it was, or a file is not what it should be.",
    129: "The terminal was closed. What was written is kept.",
    130: "Ctrl-C. What was written is kept.",
    143: "SIGTERM. What was written is kept.",
}
