"""`--batch`: put a batch size, or another size that has a name, into the inputs.

It goes where a SPEC has the word `batch`, or the name, or into the parameter of the function that
makes the inputs.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from jaxresid.base.errors import InputsError

PARAMETERS = ("batch", "batch_size")
DEFAULT = "batch"
# Of a range of numbers of microbatches.
_MOST = 4096
# Of the multiples in a range of sizes.
_MOST_SIZES = 1_000_000
# A string, or an array with its shape: the word stands for a size nowhere else, and after an `@`
# it may well be an axis of the mesh.
_ARRAY = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?)"""
    r"""|(?<!\w)(?P<dtype>\w++)\[(?P<shape>[^\[\]]*+)\]"""
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of `--batch`, as they were written.

    Attributes:
      parts: the first and the last number of each range; of a single number it is both.
      name: what the size is of: `batch`, or as `context=1024..8192` has it.
    """

    parts: tuple[tuple[int, int], ...] = ()
    name: str = DEFAULT

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __str__(self) -> str:
        texts = (str(low) if low == high else f"{low}..{high}" for low, high in self.parts)
        return ("" if self.name == DEFAULT else f"{self.name}=") + ",".join(texts)

    @property
    def listed(self) -> tuple[int, ...]:
        """Each size once: of a range its first number, doubled again and again, and its last."""
        found: list[int] = []
        for low, high in self.parts:
            size = low
            while size < high:
                found.append(size)
                size *= 2
            found.append(high)
        return tuple(dict.fromkeys(found))

    @property
    def every(self) -> tuple[int, ...]:
        """All sizes that are listed, and all multiples in the ranges, the smallest first."""
        multiples = (range(low, high + 1, low) for low, high in self.parts)
        return tuple(sorted({*self.listed, *itertools.chain(*multiples)}))

    def at(self, size: int | None) -> Sizes:
        """Return one size of the same name; None: none, for the inputs as they are."""
        return replace(self, parts=() if size is None else ((size, size),))

    @property
    def single(self) -> int | None:
        """The one size that a program has; None for the inputs as they are.

        Raises:
          InputsError: There are several.
        """
        sizes = self.listed
        if len(sizes) > 1:
            listed = ",".join(map(str, sizes))
            raise InputsError(
                f"--batch: only plan and sweep take several sizes ({listed}); choose one: --batch"
                f" {self.at(sizes[0])}"
            )
        return sizes[0] if sizes else None


def parsed(context: click.Context, parameter: click.Parameter, value: str | None) -> Sizes:
    """Return the sizes of text such as `8,16,32`, `8..64` or `context=1024..8192`.

    Raises:
      click.BadParameter: A part is not a size, or what is before `=` is no name.
    """
    if value is None:
        return Sizes()
    name, is_named, text = value.partition("=")
    name = name.strip() if is_named else DEFAULT
    if not name.isidentifier():
        raise click.BadParameter(f"{name!r} is not a name; write e.g. context=1024..8192")
    parts = []
    for part in (text if is_named else value).split(","):
        low, high = _range(part, "a batch size")
        if low == 0:
            raise click.BadParameter("a size of 0 holds nothing; the smallest is 1")
        if high // low > _MOST_SIZES:
            raise click.BadParameter(
                f"{part.strip()!r} are too many sizes; a range has the multiples of its first"
                f" number: write {-(-high // _MOST_SIZES)}..{high}"
            )
        parts.append((low, high))
    return Sizes(tuple(parts), name)


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


def is_sized(spec: str, name: str = DEFAULT) -> bool:
    """Return whether a dimension of a SPEC is the word `batch`, or another name."""
    return sized_spec(spec, Sizes(((1, 1),), name)) != spec


def sized_spec(spec: str, sizes: Sizes) -> str:
    """Return the SPEC with the size in place of the dimensions that are its name.

    With no size the SPEC is returned as it is.
    """
    size = sizes.single
    if size is None:
        return spec
    word = re.compile(rf"(?<!\w){re.escape(sizes.name)}(?!\w)")

    def replaced(match: re.Match[str]) -> str:
        if match["string"] is not None:
            return match[0]
        return f"{match['dtype']}[{word.sub(str(size), match['shape'])}]"

    return _ARRAY.sub(replaced, spec)


def check_specs(specs: Sequence[str], sizes: Sizes) -> None:
    """Check that SPECs have the name of the sizes where `--batch` is given, and only there.

    Raises:
      InputsError: `--batch` is given and no SPEC has the name, or the other way round.
    """
    sized = [spec for spec in specs if is_sized(spec, sizes.name)]
    if sized and not sizes:
        raise InputsError(
            f"{sized[0]} has a dimension `batch`: give its size with --batch, e.g. --batch 8"
        )
    if sizes and specs and not sized:
        raise InputsError(
            f"--batch: no SPEC has a dimension named {sizes.name}; write it where the size goes, as"
            f" in f32[{sizes.name},2048]"
        )


def sized(make: Callable[..., Any], sizes: Sizes) -> Callable[..., Any]:
    """Return the function that makes the inputs with its size bound.

    The size goes to the parameter of its name; a batch size to `batch` or `batch_size`. With no
    size the function is returned as it is.

    Raises:
      InputsError: It has no such parameter.
    """
    size = sizes.single
    if size is None:
        return make
    try:
        name = getattr(make, "__name__", "the function that makes the inputs")
        parameters = list(inspect.signature(make).parameters)
    except Exception:  # TypeError, ValueError, or what the attributes of a callable object raise
        name = "the function that makes the inputs"
        parameters = []
    names = PARAMETERS if sizes.name == DEFAULT else (sizes.name,)
    for parameter in names:
        if parameter in parameters:
            bound = functools.partial(make, **{parameter: size})
            bound.__name__ = name  # type: ignore[attr-defined]
            return bound
    other = f"; for another size write --batch {parameters[0]}={size}" if parameters else ""
    raise InputsError(f"--batch: {name} has no parameter named {' or '.join(names)}{other}")
