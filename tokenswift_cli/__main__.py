"""``python -m tokenswift_cli``."""

from tokenswift_cli.cli import main

if __name__ == "__main__":
    main()
