"""Find comments, strings and logical lines of Python text, without a parser.

`tokenize` would do, but it knows only the grammar of the Python that runs, stops at the first
error, and takes three times as long.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# What ends a line for Python. str.splitlines knows more: form feeds, U+2028.
LINE_END = re.compile(r"\r\n|\r|\n")


class Comment(NamedTuple):
    """A comment, from its `#`; `alone` where its line holds nothing else."""

    row: int
    column: int
    text: str
    alone: bool


class Scan(NamedTuple):
    """The comments and lines of a text, found without a full parse.

    Attributes:
      logical: first and last row of each logical line.
      closed: rows that end inside a string or in a continuation, where no comment can follow.
    """

    comments: tuple[Comment, ...]
    logical: tuple[tuple[int, int], ...]
    closed: frozenset[int]


_TOKEN = re.compile(
    r"""(?P<comment>\#[^\r\n]*)
      | (?P<continued>\\(?:\r\n|\r|\n))
      | (?P<newline>\r\n|\r|\n)
      | (?P<prefix>(?<!\w)[rRbBuUfFtT]{1,2})?(?P<quote>\"\"\"|'''|"|')
      | (?P<open>[(\[{])
      | (?P<close>[)\]}])""",
    re.VERBOSE,
)
_TOKEN_IN_FIELD = re.compile(_TOKEN.pattern + "|(?P<colon>:)", re.VERBOSE)
_IN_LITERAL = re.compile(r"\\(?:\r\n|[^{}])|\{\{|[{}\"'\r\n]", re.DOTALL)
_FORMATTED = set("fFtT")
_STRING_END = {
    '"': re.compile(r'[^"\\\r\n]*(?:\\(?:\r\n|.)[^"\\\r\n]*)*"', re.DOTALL),
    "'": re.compile(r"[^'\\\r\n]*(?:\\(?:\r\n|.)[^'\\\r\n]*)*'", re.DOTALL),
    '"""': re.compile(r'[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""', re.DOTALL),
    "'''": re.compile(r"[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''", re.DOTALL),
}
_TO_LINE_END = re.compile(r"[^\r\n]*")


def scan(text: str) -> Scan:
    """Return the comments and logical lines of a module; of a broken one as many as can be told."""
    comments: list[Comment] = []
    logical: list[tuple[int, int]] = []
    closed: set[int] = set()
    row, line_start, first, depth, pos = 1, 0, 0, 0, 0
    nested = True  # until an f-string turns out not to end: then the file is broken

    def has_code(end: int) -> bool:
        return bool(text[line_start:end].strip())

    while match := _TOKEN.search(text, pos):
        kind, start, pos = match.lastgroup, match.start(), match.end()
        if kind == "comment":
            alone = not has_code(start)
            comments.append(Comment(row, start - line_start, match.group(), alone))
            if not alone:
                first = first or row
        elif kind == "newline":
            if not comments or comments[-1].row != row:
                first = first or (row if has_code(start) else 0)
            if first and not depth:
                logical.append((first, row))
                first = 0
            row, line_start = row + 1, pos
        elif kind == "continued":
            first = first or row
            closed.add(row)
            row, line_start = row + 1, pos
        elif kind == "quote":
            first = first or row
            end = None
            if nested and _FORMATTED & set(match["prefix"] or ""):
                end = _formatted_end(text, pos, match["quote"])
                nested = end is not None
            pos = end if end is not None else _plain_end(text, pos, match["quote"])
            for line in LINE_END.finditer(text, match.end(), pos):
                closed.add(row)
                row, line_start = row + 1, line.end()
        else:
            first = first or row
            depth = max(0, depth + (1 if kind == "open" else -1))
    if first or has_code(len(text)):
        alone = bool(comments) and comments[-1].row == row and comments[-1].alone
        logical += [(first or row, row)] if first or not alone else []
    return Scan(tuple(comments), tuple(logical), frozenset(closed))


def logical_end(text: str, pos: int, nested: bool = True) -> tuple[int, bool]:
    """Return the offset where the logical line that starts at `pos` ends, after its line end.

    Args:
      nested: whether all f-strings until there end, whose fields then may hold any expression.

    Returns:
      The offset, and whether all f-strings until there end.
    """
    depth = 0
    while match := _TOKEN.search(text, pos):
        kind, pos = match.lastgroup, match.end()
        if kind == "newline" and not depth:
            return pos, nested
        if kind == "quote":
            end = None
            if nested and _FORMATTED & set(match["prefix"] or ""):
                end = _formatted_end(text, pos, match["quote"])
                nested = end is not None
            pos = end if end is not None else _plain_end(text, pos, match["quote"])
        elif kind in {"open", "close"}:
            depth = max(0, depth + (1 if kind == "open" else -1))
    return len(text), nested


def _plain_end(text: str, pos: int, quote: str) -> int:
    """Return where a string ends; an open one with its line, or with the text."""
    if match := _STRING_END[quote].match(text, pos):
        return match.end()
    if len(quote) == 3:
        return len(text)
    match = _TO_LINE_END.match(text, pos)
    return match.end() if match else pos


def _formatted_end(text: str, pos: int, quote: str) -> int | None:
    """Return where an f-string ends, None where it does not.

    Its fields can hold any expression, strings included. The stack holds what is open: a quote for
    literal text, `{` for a field, `(` for a bracket in it, `:` for its format.
    """
    stack = [quote]
    while stack:
        top = stack[-1]
        pattern = _TOKEN_IN_FIELD if top in {"{", "("} else _IN_LITERAL
        match = pattern.search(text, pos)
        if match is None:
            return None
        step = _in_literal if pattern is _IN_LITERAL else _in_field
        after = step(text, match, stack)
        if after is None:
            return None
        pos = after
    return pos


def _in_literal(text: str, match: re.Match[str], stack: list[str]) -> int | None:
    token, pos = match.group(), match.end()
    quote = next(s for s in reversed(stack) if s[0] in "\"'")
    if token in {'"', "'"} and text.startswith(quote, match.start()):
        if stack.pop() == ":":
            return None
        return match.start() + len(quote)
    if token in {"\r", "\n"} and len(quote) == 1:
        return None
    if token == "}" and stack[-1] == ":":
        del stack[-2:]
    elif token == "{" or (token == "{{" and stack[-1] == ":"):
        stack.append("{")
        return match.start() + 1
    return pos


def _in_field(text: str, match: re.Match[str], stack: list[str]) -> int | None:
    kind, pos = match.lastgroup, match.end()
    if kind == "quote":
        if _FORMATTED & set(match["prefix"] or ""):
            stack.append(match["quote"])
            return pos
        end = _STRING_END[match["quote"]].match(text, pos)
        return end.end() if end else None
    if kind == "open":
        stack.append("(")
    elif kind == "close":
        if stack.pop() == "{" and match.group() != "}":
            return None
    elif kind == "colon" and stack[-1] == "{":
        stack.append(":")
    return pos
