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


# What registers them all when it is imported.
_RENDERERS = "jaxresid.render.display"
# What writes JSON documents.
_ENCODING = "jaxresid.serialization.encoding"
_FILES = "jaxresid.serialization.files"
# What makes pages.
_PAGE = "jaxresid.render.page.html"
# What makes the files of viewers.
_PPROF = "jaxresid.render.traces.pprof"
_PERFETTO = "jaxresid.render.traces.perfetto"
# What makes tables.
_FRAMES = "jaxresid.serialization.dataframe"


def _unknown(value: object) -> NoReturn:
    raise TypeError(f"a value of type {type(value).__name__} cannot be shown")


@functools.singledispatch
def printer(value: object, **options: Any) -> None:
    """Print a value to stdout; renderers register for its type."""
    _unknown(value)


@functools.singledispatch
def html_writer(value: object) -> str:
    """Return a value as HTML; renderers register for its type."""
    _unknown(value)


@functools.singledispatch
def svg_writer(value: object, **options: Any) -> str:
    """Return a value as SVG; renderers register for its type."""
    _unknown(value)


@functools.singledispatch
def renderer(value: object, encoding: str) -> Any:
    """Return a value as what rich prints, for a stream; renderers register for its type."""
    _unknown(value)


def show(value: object, **options: Any) -> None:
    """Print a value to stdout.

    Raises:
      TypeError: no renderer is registered for it.
    """
    importlib.import_module(_RENDERERS)
    printer(value, **options)


def to_json(value: object) -> str:
    """Return a result as JSON text.

    Raises:
      TypeError: it has no JSON document.
    """
    text: str = importlib.import_module(_ENCODING).json_document(value)
    return text


def save(value: object, path: str | os.PathLike[str]) -> None:
    """Write a result to a file as JSON, which `jaxresid.load` reads.

    Raises:
      JaxresidError: the file cannot be written.
    """
    importlib.import_module(_FILES).save(value, path)


def to_html(value: object) -> str:
    """Return a value as HTML.

    Raises:
      TypeError: no renderer is registered for it.
    """
    importlib.import_module(_RENDERERS)
    return html_writer(value)


def to_svg(value: object, **options: Any) -> str:
    """Return a picture of a value as SVG.

    Raises:
      TypeError: no renderer is registered for it.
      ValueError: there is nothing to draw.
    """
    importlib.import_module(_RENDERERS)
    return svg_writer(value, **options)


def to_page(value: object) -> str:
    """Return a value as one page of HTML that needs no network.

    Raises:
      TypeError: there is no page for it.
    """
    text: str = importlib.import_module(_PAGE).page(value)
    return text


def to_pprof(value: object) -> bytes:
    """Return a result as a profile for pprof.

    Raises:
      TypeError: there is no profile of it.
      ValueError: it was made without what the profile is of.
    """
    data: bytes = importlib.import_module(_PPROF).profile(value)
    return data


def to_perfetto(value: object) -> bytes:
    """Return a result as a trace for Perfetto.

    Raises:
      ValueError: it was made without lifetimes.
    """
    data: bytes = importlib.import_module(_PERFETTO).trace(value)
    return data


def render(value: object, encoding: str) -> Any:
    """Return a value as what rich prints.

    Args:
      value: the value.
      encoding: the encoding of the stream that it is printed to.

    Raises:
      TypeError: no renderer is registered for it.
    """
    importlib.import_module(_RENDERERS)
    return renderer(value, encoding)


def to_text(value: object, width: int) -> str:
    """Return the text of a value, as wide as `width` columns.

    Raises:
      TypeError: no renderer is registered for it.
    """
    text: str = importlib.import_module(_RENDERERS).plain_text(value, width)
    return text


def to_dataframe(value: object) -> pandas.DataFrame:
    """Return the rows of a value as a DataFrame.

    Raises:
      JaxresidError: pandas is not installed.
    """
    return importlib.import_module(_FRAMES).dataframe(value)
