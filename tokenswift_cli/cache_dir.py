"""Where files that can be made again are kept: converted models and the index of file hashes."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """The cache directory, absolute; it need not exist yet.

    ``TOKENSWIFT_CACHE`` if set, else ``$XDG_CACHE_HOME/tokenswift``, else ``~/.cache/tokenswift``.
    """
    chosen = os.environ.get("TOKENSWIFT_CACHE", "").strip()
    if chosen:
        return Path(chosen).expanduser().absolute()
    # The XDG base directory specification says that a relative path here is invalid and ignored.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tokenswift"
