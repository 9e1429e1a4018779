"""Parse the SPEC of `--arg` and `--kwarg`, and the axes of `--mesh`.

A SPEC is an array type, or containers and literals around array types:

    f32[64,512]   bf16[8,128]   i32[]   key[]   float32[3]
    {"w": f32[4,4], "b": f32[4]}   [f32[2], None, 3, "adam"]   (f32[2], True)
    f32[64,512]@data,model   f32[64,512]@None,model   f32[64,512]@(data,model),None   f32[8]@()

After `@` come, dim by dim as in a `jax.sharding.PartitionSpec`, the mesh axes that the array is
split over. The list ends where the dims do, before a dtype with its `[`, and before what cannot be
an axis.

Parsing needs no jax: an array becomes an `ArraySpec`, everything else the Python value itself.
"""

from __future__ import annotations

import ast
import cmath
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxresid.base.errors import InputsError, SpecError
from jaxresid.base.text.nearest import did_you_mean

# Short names as jaxprs print them -> the names that jax.numpy knows.
_SHORT_DTYPES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "c64": "complex64",
    "c128": "complex128",
    "bool": "bool",
    "pred": "bool",
    "key": "key",
    **{f"i{n}": f"int{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"s{n}": f"int{n}" for n in (2, 4, 8, 16, 32, 64)},
}
_LONG_DTYPES = frozenset(_SHORT_DTYPES.values())
_FLOAT8 = re.compile(r"(?:f8|float8|f4|float4|f6|float6)_\w+")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>[rb]?"(?:[^"\\]|\\.)*"|[rb]?'(?:[^'\\]|\\.)*')
    | (?P<number>[+-]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?j?)
    | (?P<name>[+-]?[A-Za-z_][A-Za-z_0-9]*)
    | (?P<mark>[\[\](){}:,@])
    )""",
    re.VERBOSE,
)
_CONSTANTS = {"None": None, "True": True, "False": False}
_DIGITS = 1000  # Python converts no more than 4,300 at once
_DEEPEST = 100  # a level takes three calls, and Python's limit is a thousand


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An abstract array.

    Attributes:
      dtype: a name that `jax.numpy` knows, or `key`.
      shape: the size of each dim.
      split: the mesh axes that the first dims are split over, dim by dim; the others are whole.
    """

    dtype: str
    shape: tuple[int, ...]
    split: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


def parse_spec(text: str, axes: Mapping[str, int] | None = None) -> Any:
    """Return the value of a SPEC: `ArraySpec`s inside Python containers and literals.

    Args:
      text: the SPEC.
      axes: names and sizes of the mesh's axes; None: there is no mesh.

    Raises:
      SpecError: The SPEC does not parse; the message shows where.
    """
    parser = _Parser(text, axes)
    value = parser.value()
    parser.end()
    return value


def parse_axes(text: str) -> dict[str, int]:
    """Parse the axes of a mesh, `data=4,model=2`, into sizes by name, in this order.

    Raises:
      InputsError: The text is not of this form, or names an axis twice.
    """
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (p.strip() for p in part.partition("="))
        if not name.isidentifier() or name in _CONSTANTS or not re.fullmatch(r"[1-9]\d*", size):
            raise InputsError(
                f"--mesh {text!r}: {part.strip()!r} is not AXIS=SIZE; write e.g. data=4,model=2"
            )
        if name in axes:
            raise InputsError(f"--mesh {text!r} has the axis {name} twice")
        axes[name] = int(size)
    return axes


class _Parser:
    def __init__(self, text: str, axes: Mapping[str, int] | None) -> None:
        self.text = text
        self.axes = axes
        self.tokens = _tokens(text)
        self.at = 0
        self.depth = 0  # of the containers around

    def fail(self, reason: str, token: _Token | None = None) -> SpecError:
        column = (token or self.peek()).column
        return SpecError(self.text, column, reason)

    def peek(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        token = self.tokens[self.at]
        self.at += token.kind != "end"
        return token

    def accept(self, mark: str) -> bool:
        if self.peek().text == mark and self.peek().kind == "mark":
            self.at += 1
            return True
        return False

    def expect(self, mark: str, where: str) -> None:
        if not self.accept(mark):
            raise self.fail(f"expected {mark!r} {where}")

    def end(self) -> None:
        if self.peek().kind != "end":
            raise self.fail(f"unexpected {_cut(self.peek().text)!r} after the value")

    def value(self) -> Any:
        token = self.take()
        if self.depth > _DEEPEST:
            raise self.fail(f"the containers are nested more than {_DEEPEST} deep", token)
        if token.kind in ("string", "number"):
            return self.python_literal(token)
        if token.kind == "name":
            if token.text in _CONSTANTS:
                return _CONSTANTS[token.text]
            return self.array(token)
        if token.text == "[":
            return list(self.items("]", "list"))
        if token.text == "(":
            return self.tuple_or_value()
        if token.text == "{":
            return self.pairs()
        if token.kind == "end":
            raise self.fail("a value is missing; write an array like f32[64,512]", token)
        raise self.fail(f"unexpected {token.text!r}; expected an array like f32[64,512]", token)

    def python_literal(self, token: _Token) -> Any:
        try:
            value = ast.literal_eval(token.text)
        except (ValueError, SyntaxError):
            raise self.fail(f"not a Python literal: {_cut(token.text)}", token) from None
        if isinstance(value, float | complex) and not cmath.isfinite(value):
            raise self.fail(f"{_cut(token.text)} is too large for a float", token)
        return value

    def items(self, close: str, what: str) -> list[Any]:
        values: list[Any] = []
        self.depth += 1
        while not self.accept(close):
            values.append(self.value())
            if not self.accept(","):
                self.expect(close, f"or ',' in the {what}")
                break
        self.depth -= 1
        return values

    def tuple_or_value(self) -> Any:
        values = self.items(")", "tuple")
        had_comma = self.tokens[self.at - 2].text == ","
        return values[0] if len(values) == 1 and not had_comma else tuple(values)

    def pairs(self) -> dict[Any, Any]:
        pairs: dict[Any, Any] = {}
        self.depth += 1
        while not self.accept("}"):
            token = self.take()
            if token.kind not in ("string", "number"):
                raise self.fail('expected a quoted key, as in {"w": f32[4,4]}', token)
            key = self.python_literal(token)
            self.check_key(key, pairs, token)
            self.expect(":", "after the key")
            pairs[key] = self.value()
            if not self.accept(","):
                self.expect("}", "or ',' in the dict")
                break
        self.depth -= 1
        return pairs

    def check_key(self, key: Any, known: Mapping[Any, Any], token: _Token) -> None:
        """Raise if a key is in the dict already (1.0 is 1) or cannot be sorted with the others.

        JAX sorts the keys of a dict.
        """
        if key in known:
            raise self.fail(f"the key {_cut(token.text)} appears twice", token)
        for first in known:
            try:
                first < key  # noqa: B015
            except TypeError:
                raise self.fail(
                    f"JAX cannot sort the keys {_cut(repr(first))} and {_cut(repr(key))}; give keys"
                    " of one type",
                    token,
                ) from None
            break

    def array(self, token: _Token) -> ArraySpec:
        dtype = _dtype_name(token.text)
        if dtype is None:
            raise self.fail(
                f"unknown dtype {_cut(token.text)!r}; use one of {' '.join(sorted(_SHORT_DTYPES))}"
                " (strings need quotes)",
                token,
            )
        if not self.accept("["):
            raise self.fail(
                f"{token.text} needs a shape: {token.text}[] for a scalar, {token.text}[64,512]"
            )
        dims: list[int] = []
        while not self.accept("]"):
            dims.append(self.dimension())
            if not self.accept(","):
                self.expect("]", "or ',' in the shape")
                break
        return ArraySpec(dtype, tuple(dims), self.split(tuple(dims)))

    def split(self, shape: tuple[int, ...]) -> tuple[tuple[str, ...], ...]:
        mark = self.peek()
        if not self.accept("@"):
            return ()
        if self.axes is None:
            raise self.fail("the names after @ are axes of a mesh; add --mesh, e.g. data=4", mark)
        if [t.text for t in self.tokens[self.at : self.at + 2]] == ["(", ")"]:
            self.at += 2
            return ()
        entries: list[tuple[str, ...]] = []
        used: set[str] = set()
        while True:
            first = self.peek()
            entry = self.entry(used)
            if len(entries) == len(shape):
                plural = "s" * (len(shape) != 1)
                raise self.fail(f"the shape has only {len(shape)} dimension{plural}", first)
            parts = math.prod(self.axes[name] for name in entry)
            if shape[len(entries)] % parts:
                over = " and ".join(f"{name}={self.axes[name]}" for name in entry)
                raise self.fail(
                    f"dimension {len(entries)} of size {shape[len(entries)]} cannot be split evenly"
                    f" over {over}",
                    first,
                )
            entries.append(entry)
            if not (self.peek().text == "," and self.has_entry(self.at + 1, entries, shape)):
                return tuple(entries)
            self.at += 1

    def has_entry(self, at: int, entries: list[tuple[str, ...]], shape: tuple[int, ...]) -> bool:
        """Return whether the token at `at` continues a split, and not what encloses it."""
        token, after = self.tokens[at], self.tokens[min(at + 1, len(self.tokens) - 1)]
        # At the top nothing is around it: one entry too many is no other value.
        if len(entries) >= len(shape) and self.depth:
            return False
        if token.text == "(":
            return after.kind == "name" and after.text in (self.axes or ())
        return token.kind == "name" and after.text != "[" and token.text not in ("True", "False")

    def entry(self, used: set[str]) -> tuple[str, ...]:
        """Return the mesh axes that one dim is split over."""
        if self.peek().kind == "name" and self.peek().text == "None":
            self.take()
            return ()
        if not self.accept("("):
            return (self.axis(used),)
        names = [self.axis(used)]
        while self.accept(","):
            names.append(self.axis(used))
        self.expect(")", "after the axes of one dimension")
        return tuple(names)

    def axis(self, used: set[str]) -> str:
        token = self.take()
        axes = self.axes or {}
        if token.kind != "name" or token.text not in axes:
            what = f"{token.text!r} is not an axis" if token.text else "an axis is missing"
            listed = f"--mesh has {', '.join(axes)}"
            raise self.fail(f"{what}; {listed}{did_you_mean(token.text, axes)}", token)
        if token.text in used:
            raise self.fail(f"the axis {token.text} already splits another dimension", token)
        used.add(token.text)
        return token.text

    def dimension(self) -> int:
        token = self.take()
        if token.kind == "end":
            raise self.fail("the shape is not closed; add ']'", token)
        if not re.fullmatch(r"\d[\d_]*", token.text):
            raise self.fail(
                f"a dimension must be a whole number of at least 0, not {_cut(token.text)}", token
            )
        if len(token.text) > _DIGITS:
            raise self.fail(f"a dimension of {len(token.text)} digits is too large", token)
        return int(token.text)


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _dtype_name(text: str) -> str | None:
    if text in _SHORT_DTYPES:
        return _SHORT_DTYPES[text]
    if text in _LONG_DTYPES:
        return text
    if _FLOAT8.fullmatch(text):
        return re.sub(r"^f(?=\d)", "float", text)
    return None


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            column = at + len(text[at:]) - len(text[at:].lstrip())
            if text[column] in "'\"":
                raise SpecError(text, column, "the string is not closed")
            raise SpecError(text, column, f"unexpected character {text[column]!r}")
        group = match.lastgroup
        tokens.append(_Token(group, match.group(group), match.start(group)))
        at = match.end()
    tokens.append(_Token("end", "", end))
    return tokens
