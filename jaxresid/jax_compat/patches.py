"""Attributes of JAX replaced for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def patched(values: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Set attributes, given as object and name, for as long as the context lasts."""
    before = {key: getattr(*key) for key in values}
    try:
        for (module, name), new in values.items():
            setattr(module, name, new)
        yield
    finally:
        for (module, name), old in before.items():
            setattr(module, name, old)
