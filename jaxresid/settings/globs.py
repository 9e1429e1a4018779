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
    """Return a function of an absolute path and its name: whether one of the globs matches."""
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
# The pieces of a glob that match as much as is needed: of any text, and of whole folders. All
# others are regexes of one character.
STAR, FOLDERS = "*", "**/"
_MOST_ALTERNATIVES = 1000


def regex_of(pattern: str) -> str:
    """Return the regex that matches what a whole glob matches.

    Raises:
      ValueError: A bracket or brace is not closed, a brace is not opened, or the braces stand for
        too many globs.
    """
    # The globs until here; then of each brace that is open those before it, and its alternatives.
    globs: list[list[str]] = [[]]
    opened: list[tuple[list[list[str]], list[list[str]]]] = []
    i = 0
    while match := _TOKEN.match(pattern, i):
        token, start, i = match[0], i, match.end()
        pieces: list[str] = []
        if token == "**":
            pieces, i = _recursive(pattern, start)
        elif token == "[":
            piece, i = _character_class(pattern, i)
            pieces = [piece]
        elif token[0] == "*":
            pieces = [STAR]
        elif token == "?":
            pieces = ["."]
        elif token == "{":
            opened.append((globs, []))
            globs = [[]]
        elif token == "}":
            if not opened:
                raise ValueError("`}` without `{`")
            before, alternatives = opened.pop()
            alternatives += globs
            if len(before) * len(alternatives) > _MOST_ALTERNATIVES:
                raise ValueError(f"its braces stand for over {_MOST_ALTERNATIVES:,} globs")
            globs = [[*one, *other] for one in before for other in alternatives]
        elif token == "," and opened:
            opened[-1][1].extend(globs)
            globs = [[]]
        else:
            pieces = [re.escape(token[-1])]
        for glob in globs:
            glob.extend(pieces)
    if opened:
        raise ValueError("`{` without `}`")
    return "|".join(dict.fromkeys(map(regex_of_pieces, globs)))


def regex_of_pieces(pieces: Iterable[str], character: str = ".") -> str:
    """Return the regex of the pieces of a glob.

    What stands between two wildcards is matched where it first occurs, and there alone: what
    follows it may be anywhere after that, and to try all other places takes time that is
    exponential in the number of wildcards.

    Args:
      pieces: regexes of one character each, `STAR` and `FOLDERS`.
      character: the regex of the characters that `STAR` matches.
    """
    runs: list[tuple[str, list[str]]] = [("", [])]
    for piece in pieces:
        if piece not in (STAR, FOLDERS):
            runs[-1][1].append(piece)
        elif runs[-1][1] or not runs[-1][0]:
            runs.append((piece, []))
        elif piece == STAR:
            runs[-1] = STAR, []
    first, *others = [(wildcard, "".join(run)) for wildcard, run in runs]
    out = [first[1]]
    for wildcard, run in others[:-1]:
        shortest = f"{character}*?" if wildcard == STAR else "(?:.*?/)??"
        out.append(f"(?>{shortest}{run})")
    for wildcard, run in others[-1:]:  # it has to end where the text does
        out.append(f"{character}*{run}" if wildcard == STAR else f"(?:.*/)?{run}")
    return "".join(out)


def _recursive(pattern: str, start: int) -> tuple[list[str], int]:
    """Return the pieces of the `**` at `start`, and the index after it and any slash with it."""
    end = start + 2
    if start and pattern[start - 1] != "/":
        return [STAR], end
    if end == len(pattern):
        return ([".", STAR] if start else [STAR]), end
    return ([FOLDERS], end + 1) if pattern[end] == "/" else ([STAR], end)


def _character_class(pattern: str, start: int) -> tuple[str, int]:
    """Return the regex of a class whose `[` is just before `start`, and the index after it."""
    negated = pattern[start : start + 1] in ("!", "^")
    first = start + negated
    end = pattern.find("]", first + 1)
    if end < 0:
        raise ValueError("`[` without `]`")
    inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", pattern[first:end])
    return f"[{'^' if negated else ''}{inside}]", end + 1
