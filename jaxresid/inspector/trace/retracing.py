"""Tell what the user's code or JAX raises, while a program is traced again, from errors of ours."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from types import CodeType

from jaxresid import jax_compat
from jaxresid.base.errors import NOT_CAUGHT, JaxresidError, RetraceError, is_caller, summary
from jaxresid.base.home import FOLDER
from jaxresid.inspector.jaxpr.frames import from_exception, is_adapter, is_jax
from jaxresid.inspector.trace.function import BackwardError

_log = logging.getLogger(__name__)

# JAX raises these for no program: it was handed what it cannot read.
_OF_MISTAKES = (AttributeError, ImportError, LookupError)
# The functions of a module that say that it has no such name.
_LOOKUPS = ("__getattr__", "getattr")


@contextlib.contextmanager
def retracing(what: str) -> Iterator[None]:
    """Return the context to trace or to differentiate a program in again.

    Args:
      what: what it is traced with, for the log: `the rewrite`.

    Raises:
      RetraceError: the user's code raised something, or JAX did for it.
      Exception: an error of our own code, as it is.
    """
    try:
        with jax_compat.whole_tracebacks():
            yield
    except RetraceError:
        raise
    except NOT_CAUGHT:
        raise
    except Exception as e:
        cause = _cause(e)
        if not isinstance(cause, JaxresidError) and is_own(cause):
            raise cause  # noqa: B904 - it is what `e` tells of
        said = str(e) if isinstance(e, JaxresidError) else summary(cause)
        _log.warning("%s cannot be traced: %s", what, said)
        raise RetraceError(said) from e


def is_own(error: BaseException) -> bool:
    """Return whether an exception with its whole traceback is an error of our own code.

    It is if our code raised it, or called what did and is neither JAX nor the user's: where that is
    called is marked, see `calls_user_code`.
    """
    codes = [code for code, _ in from_exception(error.__traceback__)]
    last = max((i for i, code in enumerate(codes) if _is_ours(code)), default=None)
    if last is None:
        return False
    caller, called = codes[last], codes[last + 1 :]
    if not called:
        return True
    if not is_jax(called[0]):
        return not is_caller(caller)
    if all(map(is_jax, called)) and isinstance(error, _OF_MISTAKES):
        return True
    return len(called) == 1 and called[0].co_name in _LOOKUPS


def _cause(error: BaseException) -> BaseException:
    """Return what an error of ours about the user's code tells of; another error as it is."""
    while isinstance(error, JaxresidError | BackwardError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_ours(code: CodeType) -> bool:
    is_here = code is retracing.__wrapped__.__code__  # type: ignore[attr-defined]
    return code.co_filename.startswith(FOLDER) and not is_adapter(code) and not is_here
