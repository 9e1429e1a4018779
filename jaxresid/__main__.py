"""`python -m jaxresid` and the console script."""

import sys


def main() -> None:
    """Runs the command line and exits with its code."""
    from jaxresid.cli.running import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
