"""``python -m tokenswift_cli`` and the console script."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit.

    Everything is imported within: Ctrl-C in the first moments ends quietly, too.
    """
    try:
        from tokenswift_cli.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
