"""Match globs as ruff's globset reads them: `*` and `?` match slashes as well."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple


class Glob(NamedTuple):
    """A glob as written, and the directory it is relative to."""

    pattern: str
    base: str

    def matcher(self) -> Callable[[str], bool]:
        """Return a function that tells whether an absolute path, or its last component, matches."""
        return _matcher(self)


@lru_cache(maxsize=1024)
def _matcher(glob: Glob) -> Callable[[str], bool]:
    whole = re.compile(_absolute_regex(glob), re.DOTALL).fullmatch
    last = re.compile(regex_of(glob.pattern), re.DOTALL).fullmatch

    def match(path: str) -> bool:
        path = path.replace(os.sep, "/")
        return bool(whole(path) or last(path.rpartition("/")[2]))

    return match


@lru_cache(maxsize=64)
def excluder(globs: tuple[Glob, ...]) -> Callable[[str, str], bool]:
    """Return a function that tells whether one of the globs matches a path.

    The function takes an absolute path and its last component.
    """
    plain = frozenset(g.pattern for g in globs if re.fullmatch(r"[\w.-]+", g.pattern))
    names = [g for g in globs if "/" not in g.pattern and g.pattern not in plain]
    paths = [g for g in globs if g.pattern not in plain]
    by_name = _union(regex_of(g.pattern) for g in names)
    by_path = _union(_absolute_regex(g) for g in paths)

    def excluded(path: str, name: str) -> bool:
        if name in plain:
            return True
        return bool(
            (by_name and by_name.fullmatch(name))
            or (by_path and by_path.fullmatch(path.replace(os.sep, "/")))
        )

    return excluded


def _union(regexes: Iterable[str]) -> re.Pattern[str] | None:
    text = "|".join(f"(?:{regex})" for regex in regexes)
    return re.compile(text, re.DOTALL) if text else None


def _absolute_regex(glob: Glob) -> str:
    pattern = glob.pattern.replace(os.sep, "/") if os.sep != "/" else glob.pattern
    if os.path.isabs(pattern):
        return regex_of(pattern.rstrip("/"))
    base = re.sub(r"([\\*?\[\]{},!])", r"\\\1", glob.base.replace(os.sep, "/"))
    parts: list[str] = []
    for part in (base + "/" + pattern).split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return regex_of("/".join(("", *parts)) if base.startswith("/") else "/".join(parts))


_TOKEN = re.compile(r"\*+|\\.|.", re.DOTALL)


def regex_of(pattern: str) -> str:
    """Return the regex that matches what a whole glob matches.

    Raises:
      ValueError: A bracket or brace is not closed, or a brace is not opened.
    """
    out: list[str] = []
    depth, i = 0, 0
    while match := _TOKEN.match(pattern, i):
        token, start, i = match[0], i, match.end()
        if token == "**":
            piece, i = _recursive(pattern, start)
        elif token == "[":
            piece, i = _character_class(pattern, i)
        elif token[0] == "*":
            piece = ".*"
        elif token == "?":
            piece = "."
        elif token in "{}":
            depth += 1 if token == "{" else -1
            piece = "(?:" if token == "{" else ")"
        elif token == "," and depth:
            piece = "|"
        else:
            piece = re.escape(token[-1])
        if depth < 0:
            raise ValueError("`}` without `{`")
        out.append(piece)
    if depth:
        raise ValueError("`{` without `}`")
    return "".join(out)


def _recursive(pattern: str, start: int) -> tuple[str, int]:
    """Return the regex of the `**` at `start`, and the index after it and any slash it consumes."""
    end = start + 2
    if start and pattern[start - 1] != "/":
        return ".*", end
    if end == len(pattern):
        return (".+" if start else ".*"), end
    return ("(?:.*/)?", end + 1) if pattern[end] == "/" else (".*", end)


def _character_class(pattern: str, start: int) -> tuple[str, int]:
    """Return the regex of a class whose `[` is just before `start`, and the index after it."""
    negated = pattern[start : start + 1] in ("!", "^")
    first = start + negated
    end = pattern.find("]", first + 1)
    if end < 0:
        raise ValueError("`[` without `]`")
    inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", pattern[first:end])
    return f"[{'^' if negated else ''}{inside}]", end + 1
