"""Add and remove arguments in the text of a call.

Comments, quotes and line breaks of the other arguments stay.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jaxresid.linter.text.source import SourceText

_COMMENT = re.compile(r"#[^\r\n]*")
_BLANKS_AND_COMMENT = re.compile(r"(?<![ \t])[ \t]*+#[^\r\n]*")
_JOINED_LINES = re.compile(r"\\\r?\n")


class WrittenArgument(NamedTuple):
    """The text of an argument.

    Attributes:
      text: the argument, with parentheses around it.
      after: what follows up to the next argument or the closing bracket: blanks, comments, and a
        comma, which the last argument need not have.
    """

    text: str
    after: str

    @property
    def _comma(self) -> int:
        return _without_comments(self.after).find(",")

    @property
    def has_comma(self) -> bool:
        """Return whether a comma follows."""
        return self._comma >= 0

    @property
    def ends_line(self) -> bool:
        """Return whether a line ends after the comma."""
        after = _without_comments(self.after)[self._comma + 1 :]
        return not {"\n", "\r"}.isdisjoint(_JOINED_LINES.sub("", after))


class ArgumentList(NamedTuple):
    """The text between the brackets of a call, which it starts and ends at in the source."""

    start: int
    end: int
    before: str
    arguments: tuple[WrittenArgument, ...]

    @property
    def text(self) -> str:
        """The text between the brackets."""
        return self.before + "".join(a.text + a.after for a in self.arguments)

    def with_keyword(self, name: str, value: str) -> ArgumentList:
        """Return the list with a keyword at the end, on a line of its own if the last one is."""
        new = f"{name}={value}"
        if not self.arguments:
            return self._replace(arguments=(WrittenArgument(new, ""),))
        *others, last = self.arguments
        between = ", "
        if others and last.has_comma and last.ends_line:
            between = _BLANKS_AND_COMMENT.sub("", others[-1].after)
        return self._replace(
            arguments=(*others, last._replace(after=between), WrittenArgument(new, last.after)),
        )

    def without(self, indices: set[int]) -> ArgumentList:
        """Return the list without the arguments at some positions."""
        kept = [a for i, a in enumerate(self.arguments) if i not in indices]
        if kept:
            kept[-1] = kept[-1]._replace(after=self.arguments[-1].after)
        return self._replace(arguments=tuple(kept))


def sorted_arguments(call: ast.Call) -> list[ast.expr | ast.keyword]:
    """Return a call's positional and keyword arguments in source order."""
    arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    return sorted(arguments, key=lambda a: (a.lineno, a.col_offset))


def read_arguments(source: SourceText, call: ast.Call) -> ArgumentList | None:
    """Return the argument list of a call; None where its one argument is a bare generator."""
    spans = [source.span(a) for a in sorted_arguments(call)]
    starts, ends = [source.start(s) for s in spans], [source.end(s) for s in spans]
    opened, closed = source.end(source.span(call.func)), source.end(source.span(call)) - 1
    if ends and ends[-1] > closed:
        return None
    # Between the nodes are brackets, commas, blanks and comments only.
    head = _without_comments(source.text[opened : starts[0] if starts else closed])
    first = opened + head.index("(") + 1
    if not starts:
        return ArgumentList(first, closed, source.text[first:closed], ())
    starts[0] = _start(source, first, starts[0])
    for index, end in enumerate(ends):
        is_last = index + 1 == len(ends)
        gap = _without_comments(source.text[end : closed if is_last else starts[index + 1]])
        ends[index] = end + gap.partition(",")[0].rfind(")") + 1
        if not is_last:
            starts[index + 1] = _start(source, end + gap.index(",") + 1, starts[index + 1])
    arguments = (
        WrittenArgument(source.text[start:end], source.text[end:following])
        for start, end, following in zip(starts, ends, [*starts[1:], closed], strict=True)
    )
    return ArgumentList(first, closed, source.text[first : starts[0]], tuple(arguments))


def _start(source: SourceText, at_least: int, node: int) -> int:
    """Return where an argument starts: at the first bracket around its node, or at the node."""
    bracket = _without_comments(source.text[at_least:node]).find("(")
    return node if bracket < 0 else at_least + bracket


def _without_comments(text: str) -> str:
    return _COMMENT.sub(lambda match: " " * len(match.group()), text)
