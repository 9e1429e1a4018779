"""Collect the findings of a trace: what is kept in vain, and what has no effect.

Each finding is about one source line and names the rule that it is a case of. An error of ours in
the code behind one finding costs that one alone, and is a warning of the report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from jaxresid.base.crashes import RAISES, Crash, crash_of
from jaxresid.base.errors import NOT_CAUGHT, JaxresidError

T = TypeVar("T")

# The names of findings -> what looks for them.
Search = tuple[str, Callable[[], Iterable[T]]]

_log = logging.getLogger(__name__)


def collected(searches: Iterable[Search[T]], crashes: list[Crash]) -> list[T]:
    """Return what is found, and add the searches that crash to `crashes`.

    Raises:
      JaxresidError: what is asked cannot be answered.
      Exception: an error of ours, where these are raised; see `crashes.RAISES`.
    """
    results = list[T]()
    for name, search in searches:
        before = len(results)
        try:
            results.extend(search())
        except (*NOT_CAUGHT, JaxresidError):
            raise
        except Exception as e:
            _log.exception("%s: crashed", name)
            if RAISES.get():
                raise
            crashes.append(crash_of(name, e))
        else:
            _log.info("%s: %d found", name, len(results) - before)
    return results
