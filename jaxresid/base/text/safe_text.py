"""Make text safe to display on a terminal, in the log of a CI service and in XML.

Paths, scopes, errors, caches and compilers may supply characters that act on a terminal, begin a
command in the log of a CI service, or are not valid in XML.

One line of text goes through `visible`, several through `lines`, a whole value of the model through
`safe_value`, JSON through `json_text`; every renderer and every writer to stderr uses one of them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

# Control characters, what ends lines elsewhere, marks that reorder what follows them, so that a
# line of source could show as another one than it is, and halves of pairs, which no stream takes.
_CLASS = (
    "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff\ufff9-\ufffb"
)
_UNSEEN = re.compile(f"[{_CLASS}]")
_IN_LINES = re.compile(f"(?![\n\t])[{_CLASS}]")
# What begins a command for GitHub's runner, which skips the space before it; the older form is one
# anywhere in a line, as is Azure's.
_COMMAND = re.compile(r"^([^\S\n]*):(?=:)|#(?=#\[|#vso\[)", re.MULTILINE)
# Of the model's values, the fields whose text may have several lines.
_SEVERAL_LINES = frozenset(
    [
        *("code", "error", "help", "measure_error", "message", "notes", "reason", "to_set"),
        *("warnings", "why"),
    ]
)

# Of these nothing is text.
_PLAIN = frozenset({type(None), bool, int, float})

T = TypeVar("T")


def visible(text: str) -> str:
    """Return the text with a picture in place of each character that would act on the terminal."""
    return _UNSEEN.sub(_picture, text)


def one_line(text: str) -> str:
    """Return the text made visible and joined into one line, with spaces for its line ends."""
    return visible(" ".join(text.splitlines()))


def lines(text: str) -> str:
    """Return several lines made visible, none of them a command to the CI service logging them."""
    return inert(_IN_LINES.sub(_picture, text))


def inert(text: str) -> str:
    """Return a document with the lines escaped that would be commands to the CI service logging it.

    For example, `::error::x` becomes `\\::error::x`. Unpaired surrogates are replaced as well.
    """
    return _COMMAND.sub(_backslash, re.sub("[\ud800-\udfff]", "\ufffd", text))


def safe_value(value: T) -> T:
    """Return a value of the model with all its text made visible.

    The same object is returned where all its text is visible already.
    """
    return _Safe().of(value, several=False)  # type: ignore[no-any-return]


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Return a value as JSON in which characters that act on a terminal are escaped.

    They are escaped as JSON does it, `\\u001b`. Unpaired surrogates, which not every reader
    accepts, are replaced.

    Args:
      value: what `json.dumps` accepts.
      indent: spaces per level; None for one line without spaces.
    """
    separators = None if indent is not None else (",", ":")
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
    return re.sub(f"(?!\n)[{_CLASS}]|(?<=##)\\[|(?<=##)v(?=so\\[)", _escape, text)


def quoted_path(path: str) -> str:
    """Return a file name for the head of a diff, quoted and escaped where git would do so."""
    if not _UNSEEN.search(path):
        return path
    escapes = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\"}

    def escaped(char: str) -> str:
        if char in escapes:
            return escapes[char]
        if not _UNSEEN.match(char):
            return char
        return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))

    return f'"{"".join(map(escaped, path))}"'


class _Safe:
    """Makes the text of values visible, that of each object and each text once."""

    def __init__(self) -> None:
        # By id; the value is kept, so that its id stays its own.
        self._known: dict[int, tuple[Any, Any]] = {}
        self._texts: dict[tuple[str, bool], str] = {}

    def of(self, value: Any, *, several: bool) -> Any:
        if type(value) in _PLAIN or isinstance(value, enum.Enum | bool | int | float):
            return value
        if isinstance(value, str):
            return self._text(value, several)
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = value, self._made(value, several)
        return known[1]

    def _text(self, text: str, several: bool) -> str:
        found = self._texts.get((text, several))
        if found is None:
            found = _IN_LINES.sub(_picture, text) if several else visible(text)
            self._texts[text, several] = found
        return text if found == text else found

    def _made(self, value: Any, several: bool) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            changes = {}
            for name in _fields(type(value)):
                old = getattr(value, name)
                if type(old) in _PLAIN:
                    continue
                new = self.of(old, several=name in _SEVERAL_LINES)
                if new is not old and new != old:
                    changes[name] = new
            return dataclasses.replace(value, **changes) if changes else value
        if _is_visible(value):
            return value
        if isinstance(value, Mapping):
            return {
                self.of(k, several=False): self.of(v, several=several) for k, v in value.items()
            }
        if isinstance(value, tuple | list):
            parts = [self.of(v, several=several) for v in value]
            if any(a is not b for a, b in zip(parts, value, strict=True)):
                is_named = isinstance(value, tuple) and hasattr(value, "_fields")
                return type(value)(*parts) if is_named else type(value)(parts)
        return value


def _is_visible(value: Any) -> bool:
    """Return whether a value is a tuple of visible texts."""
    is_of_texts = isinstance(value, tuple) and all(type(v) is str for v in value)
    return is_of_texts and not _UNSEEN.search("".join(value))


@functools.cache
def _fields(kind: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


def _picture(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def _backslash(match: re.Match[str]) -> str:
    return f"{match[1]}\\:" if match[1] is not None else "#\\"


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    return "\ufffd" if "\ud800" <= char <= "\udfff" else f"\\u{ord(char):04x}"
