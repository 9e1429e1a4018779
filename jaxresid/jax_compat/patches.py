"""Attributes of JAX replaced for a while."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_ABSENT = object()


@contextlib.contextmanager
def patched(values: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Set attributes, given as object and name, for as long as the context lasts."""
    # What an object has of its class, and not itself, it has of its class again.
    before = {(owner, name): vars(owner).get(name, _ABSENT) for owner, name in values}
    try:
        for (owner, name), new in values.items():
            setattr(owner, name, new)
        yield
    finally:
        for (owner, name), old in before.items():
            if old is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


def in_this_thread(plain: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls `new` in the thread that runs now, and `plain` in others."""
    thread = threading.get_ident()

    @functools.wraps(plain)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (new if threading.get_ident() == thread else plain)(*args, **kwargs)

    return chosen
