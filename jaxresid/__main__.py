"""Entry point of `python -m jaxresid` and of the console script."""

import gc
import sys

# Importing and parsing make many objects and little garbage. With the default of 700 the collector
# took a fifth of the time to lint the jax package.
_GC_THRESHOLD = 100000
# What these make of one program stays until the end: to look for garbage in it took a thirtieth of
# the time of a plan. The linter's trees have no cycles, and go when nobody needs them.
_NOT_COLLECTED = frozenset({"lint", "plan", "report"})
_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(_GC_THRESHOLD)
    if _NOT_COLLECTED.intersection(sys.argv[1:2]):
        gc.disable()
    try:
        from jaxresid.base import standard_streams

        standard_streams.prepare()
        from jaxresid.cli.main import run
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    code = run(sys.argv[1:])
    # Python looks for garbage once more as it ends; all of it goes with the process.
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    main()
