"""What the commands that `oom` prints are written with, by its own command line and by the log."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxresid.advice.oom.ways import Names
from jaxresid.cli.options import batches
from jaxresid.cli.options.inputs import TargetOptions
from jaxresid.cli.options.places import placed
from jaxresid.xla.chosen import DEFAULT, place_here

if TYPE_CHECKING:
    from jaxresid.advice.oom.oom import Evidence

_TPU = "tpu:v5e"  # where a log is of a TPU and does not say of which
_SIZE = re.compile(r"(?<![\s\d])\s*+(\d++)\s*+(?=,|$)")
_DEVICES, _SMALLER = 8, 8


def on_place_of(evidence: Evidence, options: TargetOptions) -> TargetOptions:
    """Return the options with the place that was typed, or that the log is of.

    Where neither names one it is the accelerator here, or a common one of that platform.
    """
    if not options.on and (on := evidence.place or _of_platform(evidence.platform)):
        source = "dump" if evidence.from_dump else "log"
        known = f"as the {source} says"
        origin = known if evidence.place else f"the {source} does not say of which one it is"
        options = replace(options, on=(on,), on_origin=origin)
    return placed(options, compiles=False)[0]


def _of_platform(platform: str) -> str:
    here = place_here() or ""
    if not platform or here.startswith(f"{platform}:"):
        return here
    return {"gpu": DEFAULT, "tpu": _TPU}.get(platform, "")


def names_of(options: TargetOptions, make: Callable[[], Any] | None) -> Names:
    """Return what commands are written with; `make` makes the inputs unless they are typed."""
    words = [*_without("--on", options.words)]
    return Names(
        shlex.join(words), options.on[0], _batched(options, words, make), _split(options, words)
    )


def _without(flag: str, words: Iterable[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        if word == flag:
            next(rest)
        else:
            yield word


def _batched(
    options: TargetOptions, words: list[str], make: Callable[[], Any] | None
) -> str | None:
    """Return the target with batches to choose from, up to the one that it has."""
    if options.batch:
        return _with_sizes(
            [*_without("--batch", words)], options.batch.listed[0], options.batch.name
        )
    if make is not None:
        size = _default_batch(make)
        return None if size is None else _with_sizes(words, size)
    size = _leading_size(options)
    return None if size is None else _with_sizes(_with_leading(options, words, "batch", ""), size)


def _with_sizes(words: list[str], size: int, name: str = batches.DEFAULT) -> str | None:
    named = "" if name == batches.DEFAULT else f"{name}="
    sizes = f"{named}{max(size // _SMALLER, 1)}..{size}"
    return None if size < 2 else f"{shlex.join(words)} --batch {sizes}"


def _default_batch(make: Callable[[], Any]) -> int | None:
    """Return the batch size that the function of the inputs has by default; None if it has none."""
    parameters = inspect.signature(make).parameters
    found = (parameters[name].default for name in batches.PARAMETERS if name in parameters)
    return next((size for size in found if type(size) is int), None)


def _split(options: TargetOptions, words: list[str]) -> str | None:
    """Return the target with the first dimension of its inputs over devices that it divides by."""
    size = None if options.mesh else _leading_size(options)
    devices = next((n for n in (_DEVICES, 4, 2) if size is not None and size % n == 0), None)
    if devices is None:
        return None
    return f"{shlex.join(_with_leading(options, words, '', '@data'))} --mesh data={devices}"


def _leading_size(options: TargetOptions) -> int | None:
    """Return the first dimension of all arrays that are typed; None where they do not share one."""
    specs = (*options.arg, *(each.partition("=")[2] for each in options.kwarg))
    sized = (batches.sized_spec(spec, options.batch) for spec in specs)
    arrays = [m for spec in sized for m in batches.arrays_in(spec) if m["shape"].strip()]
    sizes = [_SIZE.match(m["shape"]) for m in arrays]
    known = {int(size[1]) if size else None for size in sizes}
    is_plain = not any(m.string.startswith("@", m.end()) for m in arrays)
    return known.pop() if len(known) == 1 and is_plain else None


def _with_leading(options: TargetOptions, words: list[str], first: str, behind: str) -> list[str]:
    """Return the words with another first dimension in each array, and with text behind it."""

    def array(match: re.Match[str]) -> str:
        if not match["shape"].strip():
            return match[0]
        shape = _SIZE.sub(first, match["shape"], 1) if first else match["shape"]
        return f"{match['dtype']}[{shape}]{behind}"

    changed = {text: batches.with_arrays(text, array) for text in (*options.arg, *options.kwarg)}
    if options.name is None:
        return [changed.get(word, word) for word in words]
    specs = [("--arg", each) for each in options.arg] + [
        ("--kwarg", each) for each in options.kwarg
    ]
    plain = [word for word in words if word not in {"--arg", "--kwarg", *changed}]
    return [*plain, *(word for flag, text in specs for word in (flag, changed[text]))]
