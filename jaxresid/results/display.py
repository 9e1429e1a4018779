"""Show values as text, JSON, HTML or SVG, and save them.

Renderers register here, so that values import none of them; they are loaded when the first value
is shown.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import pandas


# It registers all renderers when it is imported.
_RENDERERS = "jaxresid.render.display"


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _unknown(value: object) -> NoReturn:
    raise TypeError(f"a value of type {type(value).__name__} cannot be shown")


@functools.singledispatch
def printer(value: object, **options: Any) -> None:
    """Print a value to stdout; renderers register for its type, here and below."""
    _unknown(value)


@functools.singledispatch
def html_writer(value: object) -> str:
    _unknown(value)


@functools.singledispatch
def svg_writer(value: object, **options: Any) -> str:
    _unknown(value)


@functools.singledispatch
def renderer(value: object, encoding: str) -> Any:
    """Return a value as what rich prints to a stream of an encoding."""
    _unknown(value)


def show(value: object, **options: Any) -> None:
    importlib.import_module(_RENDERERS)
    printer(value, **options)


def to_html(value: object) -> str:
    importlib.import_module(_RENDERERS)
    return html_writer(value)


def to_svg(value: object, **options: Any) -> str:
    importlib.import_module(_RENDERERS)
    return svg_writer(value, **options)


def render(value: object, encoding: str) -> Any:
    importlib.import_module(_RENDERERS)
    return renderer(value, encoding)


def to_text(value: object, width: int) -> str:
    text: str = _of(_RENDERERS, "plain_text")(value, width)
    return text


def to_json(value: object) -> str:
    text: str = _of("jaxresid.serialization.encoding", "json_document")(value)
    return text


def save(value: object, path: str | os.PathLike[str]) -> None:
    _of("jaxresid.serialization.files", "save")(value, path)


def to_page(value: object) -> str:
    text: str = _of("jaxresid.render.page.html", "page")(value)
    return text


def to_pprof(value: object) -> bytes:
    data: bytes = _of("jaxresid.render.traces.pprof", "profile")(value)
    return data


def to_perfetto(value: object) -> bytes:
    data: bytes = _of("jaxresid.render.traces.perfetto", "trace")(value)
    return data


def to_dataframe(value: object) -> pandas.DataFrame:
    return _of("jaxresid.serialization.dataframe", "dataframe")(value)
