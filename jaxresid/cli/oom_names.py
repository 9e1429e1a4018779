"""What the commands that `oom` prints are written with, by its own command line and by the log."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxresid.advice.oom.ways import Names
from jaxresid.cli.options import batches
from jaxresid.cli.options.places import placed
from jaxresid.cli.options.request import Request
from jaxresid.xla.chosen import DEFAULT, place_here

if TYPE_CHECKING:
    from jaxresid.advice.oom.oom import Evidence

_TPU = "tpu:v5e"  # where a log is of a TPU and does not say of which
_SIZE = re.compile(r"(?<![\s\d])\s*+(\d++)\s*+(?=,|$)")
_DEVICES, _SMALLER = 8, 8


def on_place_of(evidence: Evidence, request: Request) -> Request:
    """Return the options with the place that was typed, or that the log is of.

    Where neither names one it is the accelerator here, or a common one of that platform.
    """
    if not request.on and (on := evidence.place or _of_platform(evidence.platform)):
        source = "dump" if evidence.from_dump else "log"
        unknown = f"the {source} does not say of which one it is"
        origin = f"as the {source} says" if evidence.place else unknown
        request = replace(request, on=(on,), on_origin=origin)
    return placed(request, compiles=False)[0]


def _of_platform(platform: str) -> str:
    here = place_here() or ""
    if not platform or here.startswith(f"{platform}:"):
        return here
    return {"gpu": DEFAULT, "tpu": _TPU}.get(platform, "")


def names_of(request: Request) -> Names:
    """Return what commands are written with."""
    words = [*_without("--on", request.words)]
    return Names(shlex.join(words), request.on[0], _batched(request, words), _split(request, words))


def _without(flag: str, words: Iterable[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        if word == flag:
            next(rest)
        else:
            yield word


def _batched(request: Request, words: list[str]) -> str | None:
    """Return the target with batches to choose from, up to the one that it has."""
    if request.batch:
        return _with_sizes(
            [*_without("--batch", words)], request.batch.listed[0], request.batch.name
        )
    from jaxresid.cli.calls import maker_of

    make = maker_of(request)
    if make is not None:  # it has a batch size by default, or none
        parameters = inspect.signature(make).parameters
        sizes = (parameters[name].default for name in batches.PARAMETERS if name in parameters)
        size = next((size for size in sizes if type(size) is int), None)
        return None if size is None else _with_sizes(words, size)
    size = _leading_size(request)
    return None if size is None else _with_sizes(_with_leading(request, words, "batch", ""), size)


def _with_sizes(words: list[str], size: int, name: str = batches.DEFAULT) -> str | None:
    named = "" if name == batches.DEFAULT else f"{name}="
    sizes = f"{named}{max(size // _SMALLER, 1)}..{size}"
    return None if size < 2 else f"{shlex.join(words)} --batch {sizes}"


def _split(request: Request, words: list[str]) -> str | None:
    """Return the target with the first dimension of its inputs over devices that it divides by."""
    size = None if request.mesh else _leading_size(request)
    devices = next((n for n in (_DEVICES, 4, 2) if size is not None and size % n == 0), None)
    if devices is None:
        return None
    return f"{shlex.join(_with_leading(request, words, '', '@data'))} --mesh data={devices}"


def _leading_size(request: Request) -> int | None:
    """Return the first dimension of all arrays that are typed; None where they do not share one."""
    specs = (*request.arg, *(text.partition("=")[2] for text in request.kwarg))
    sized = (batches.sized_spec(spec, request.batch) for spec in specs)
    arrays = [m for spec in sized for m in batches.arrays_in(spec) if m["shape"].strip()]
    sizes = [_SIZE.match(m["shape"]) for m in arrays]
    leading = {int(size[1]) if size else None for size in sizes}
    is_plain = not any(m.string.startswith("@", m.end()) for m in arrays)
    return leading.pop() if len(leading) == 1 and is_plain else None


def _with_leading(request: Request, words: list[str], first: str, behind: str) -> list[str]:
    """Return the words with another first dimension in each array, and with text behind it."""

    def array(match: re.Match[str]) -> str:
        if not match["shape"].strip():
            return match[0]
        shape = _SIZE.sub(first, match["shape"], 1) if first else match["shape"]
        return f"{match['dtype']}[{shape}]{behind}"

    changed = {text: batches.with_arrays(text, array) for text in (*request.arg, *request.kwarg)}
    if request.name is None:
        return [changed.get(word, word) for word in words]
    specs = [
        *(("--arg", text) for text in request.arg),
        *(("--kwarg", text) for text in request.kwarg),
    ]
    plain = [word for word in words if word not in {"--arg", "--kwarg", *changed}]
    return [*plain, *(word for flag, text in specs for word in (flag, changed[text]))]
