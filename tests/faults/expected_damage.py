"""What a resume must make of each damage: go on with the same text, or refuse in one sentence."""

from __future__ import annotations

from collections.abc import Mapping

from .harm import CUT, DELETED, DIRECTORY_HARMS, FILE_HARMS, FLIPPED, LINKED, SWAPPED

# Exit statuses of the resume.
GOES_ON = (0,)
UNREADABLE = (1,)
REFUSED = (3,)
# Nothing can be told of a directory without its settings: wrong usage.
NO_SETTINGS = (2, 3)

# What is not a file there, or not in there, may be somebody's: it is not replaced.
_SOUND_OR_NOT = {CUT: GOES_ON, FLIPPED: GOES_ON, DELETED: GOES_ON, LINKED: REFUSED, SWAPPED: REFUSED}
# A link in their place is: it is ours to remove, and what it leads to stays.
_REPLACED_WHOLE = {**_SOUND_OR_NOT, LINKED: GOES_ON}

EXPECTED: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "run.yaml": dict.fromkeys(FILE_HARMS, NO_SETTINGS),
    "meta.json": dict.fromkeys(FILE_HARMS, REFUSED),
    "prompt.ids": dict.fromkeys(FILE_HARMS, REFUSED),
    "prompt.txt": dict.fromkeys(FILE_HARMS, GOES_ON),
    "tokens.bin": {**_SOUND_OR_NOT, DELETED: UNREADABLE},
    "output.txt": _REPLACED_WHOLE,
    "metrics.jsonl": _REPLACED_WHOLE,
    "checkpoints/ (newest)": dict.fromkeys(FILE_HARMS, GOES_ON),
    "checkpoints/ (older)": dict.fromkeys(FILE_HARMS, GOES_ON),
    "checkpoints/ (all)": dict.fromkeys(FILE_HARMS, REFUSED),
    "checkpoints/": dict.fromkeys(DIRECTORY_HARMS, REFUSED),
    ".lock": _SOUND_OR_NOT,
    "kv/ (one)": _SOUND_OR_NOT,
    "kv/ (all)": _SOUND_OR_NOT,
    "kv/": {DELETED: GOES_ON, LINKED: REFUSED, SWAPPED: REFUSED},
}

# Damage that costs no token and of which no warning need be given. How many rows were read from the journal,
# and how many computed again, is said on every resume.
UNWARNED = frozenset(
    {(".lock", harm) for harm in FILE_HARMS}
    | {("checkpoints/ (older)", DELETED), ("kv/", DELETED), ("kv/ (one)", DELETED), ("kv/ (all)", DELETED)}
)
