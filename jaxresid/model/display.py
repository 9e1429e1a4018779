"""Show values as text, JSON or HTML.

Renderers register here, so that values import none of them; they are loaded when the first value
is shown.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, NoReturn

# What registers them all when it is imported.
_RENDERERS = "jaxresid.render.display"


def _unknown(value: object) -> NoReturn:
    raise TypeError(f"a value of type {type(value).__name__} cannot be shown")


@functools.singledispatch
def printer(value: object, **options: Any) -> None:
    """Print a value to stdout; renderers register for its type."""
    _unknown(value)


@functools.singledispatch
def json_writer(value: object) -> str:
    """Return a value as JSON text; renderers register for its type."""
    _unknown(value)


@functools.singledispatch
def html_writer(value: object) -> str:
    """Return a value as HTML; renderers register for its type."""
    _unknown(value)


def show(value: object, **options: Any) -> None:
    """Print a value to stdout.

    Raises:
      TypeError: no renderer is registered for it.
    """
    importlib.import_module(_RENDERERS)
    printer(value, **options)


def to_json(value: object) -> str:
    """Return a value as JSON text.

    Raises:
      TypeError: no renderer is registered for it.
    """
    importlib.import_module(_RENDERERS)
    return json_writer(value)


def to_html(value: object) -> str:
    """Return a value as HTML.

    Raises:
      TypeError: no renderer is registered for it.
    """
    importlib.import_module(_RENDERERS)
    return html_writer(value)
