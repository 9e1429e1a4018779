"""Entry point of `python -m jaxresid` and of the console script."""

import gc
import sys

# Importing and parsing make many objects and little garbage. With the default of 700 the collector
# took a fifth of the time to lint the jax package.
_GC_THRESHOLD = 100000
_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(_GC_THRESHOLD)
    try:
        from jaxresid.cli.main import run
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
