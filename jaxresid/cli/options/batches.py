"""`--batch`: put a batch size into the inputs.

It goes where a SPEC has the word `batch`, or into a parameter of the function that makes the
inputs.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from jaxresid.errors import InputsError

PARAMETERS = ("batch", "batch_size")
# Of a range of numbers of microbatches.
_MOST = 4096
# A string, or an array with its shape: the word stands for a size nowhere else, and after an `@`
# it may well be an axis of the mesh.
_ARRAY = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?)"""
    r"""|(?<!\w)(?P<dtype>\w++)\[(?P<shape>[^\[\]]*+)\]"""
)
_WORD = re.compile(r"(?<!\w)batch(?!\w)")


def parsed(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...]:
    """Return the batch sizes of text such as `8,16,32` or `8..64`, each once.

    A range is its first number, doubled again and again, and its last.

    Raises:
      click.BadParameter: A part is not a batch size.
    """
    if value is None:
        return ()
    found: list[int] = []
    for part in value.split(","):
        low, high = _range(part, "a batch size")
        while low < high:
            found.append(low)
            low *= 2
        found.append(high)
    return tuple(dict.fromkeys(found))


def counts(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...]:
    """Return the numbers of microbatches of text such as `1,4` or `1..16`: each of a range.

    Raises:
      click.BadParameter: A part is not a number of microbatches.
    """
    if value is None:
        return (1,)
    found: list[int] = []
    for part in value.split(","):
        low, high = _range(part, "a number of microbatches")
        if high - low > _MOST:
            raise click.BadParameter(f"{part.strip()!r} are too many; write at most {_MOST}")
        found += range(low, high + 1)
    return tuple(dict.fromkeys(found))


def _range(part: str, what: str) -> tuple[int, int]:
    """Return the ends of `8..64`; of a single number it is both.

    Raises:
      click.BadParameter: It is neither.
    """
    ends = [end.strip().replace("_", "") for end in part.split("..")]
    if len(ends) > 2 or not all(end.isascii() and end.isdigit() and int(end) for end in ends):
        raise click.BadParameter(
            f"{part.strip()!r} is not {what}; write whole numbers such as 8,16,32, or a range such"
            " as 8..64"
        )
    low, high = int(ends[0]), int(ends[-1])
    if low > high:
        raise click.BadParameter(f"{part.strip()!r} is an empty range; write {high}..{low}")
    return low, high


def arrays_in(spec: str) -> Iterator[re.Match[str]]:
    """Yield the arrays of a SPEC: matches with groups `dtype` and `shape`."""
    return (match for match in _ARRAY.finditer(spec) if match["string"] is None)


def with_arrays(spec: str, array: Callable[[re.Match[str]], str]) -> str:
    """Return a SPEC with each of its arrays replaced; see `arrays_in`."""
    return _ARRAY.sub(lambda match: match[0] if match["string"] is not None else array(match), spec)


def is_sized(spec: str) -> bool:
    """Return whether a dimension of a SPEC is the word `batch`."""
    return sized_spec(spec, 1) != spec


def single(batches: Sequence[int]) -> int | None:
    """Return the one batch size that a program has; None for the inputs as they are.

    Raises:
      InputsError: There are several.
    """
    if len(batches) > 1:
        listed = ",".join(map(str, batches))
        raise InputsError(
            f"--batch: only plan and sweep take several sizes ({listed}); choose one: --batch"
            f" {batches[0]}"
        )
    return batches[0] if batches else None


def sized_spec(spec: str, batch: int | None) -> str:
    """Return the SPEC with the size in place of the dimensions that are the word `batch`.

    With no size the SPEC is returned as it is.
    """
    if batch is None:
        return spec

    def replaced(match: re.Match[str]) -> str:
        if match["string"] is not None:
            return match[0]
        return f"{match['dtype']}[{_WORD.sub(str(batch), match['shape'])}]"

    return _ARRAY.sub(replaced, spec)


def check_specs(specs: Sequence[str], batches: Sequence[int]) -> None:
    """Check that SPECs have the word `batch` where `--batch` is given, and only there.

    Raises:
      InputsError: `--batch` is given and no SPEC has the word, or the other way round.
    """
    sized = [spec for spec in specs if is_sized(spec)]
    if sized and not batches:
        raise InputsError(
            f"{sized[0]} has a dimension `batch`: give its size with --batch, e.g. --batch 8"
        )
    if batches and specs and not sized:
        raise InputsError(
            "--batch: no SPEC has a dimension named batch; write it where the batch size goes, as"
            " in f32[batch,2048]"
        )


def sized(make: Callable[..., Any], batch: int | None) -> Callable[..., Any]:
    """Return the function that makes the inputs with its batch size bound.

    The size goes to its parameter `batch` or `batch_size`. With no size the function is returned as
    it is.

    Raises:
      InputsError: It has no such parameter.
    """
    if batch is None:
        return make
    try:
        name = getattr(make, "__name__", "the function that makes the inputs")
        parameters = inspect.signature(make).parameters
    except Exception:  # TypeError, ValueError, or what the attributes of a callable object raise
        name = "the function that makes the inputs"
        parameters = {}  # type: ignore[assignment]
    for parameter in PARAMETERS:
        if parameter in parameters:
            bound = functools.partial(make, **{parameter: batch})
            bound.__name__ = name  # type: ignore[attr-defined]
            return bound
    raise InputsError(f"--batch: {name} has no parameter named {' or '.join(PARAMETERS)}")
