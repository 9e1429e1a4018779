"""Compare lines of source by what they compute, not by how they are written.

A report knows one physical line of each statement, which may be a part of it. A line is taken for
the expression that it holds: without comments, spaces, brackets that change nothing, and what the
result is assigned to, so that `h = f(x)`, `return f(x)` and `f(  x )  # why` are one.
"""

from __future__ import annotations

import ast
import copy
import difflib
import functools
import io
import tokenize
import warnings

# How alike lines are: the same expression; with local names abstracted; with the names of called
# functions abstracted too. What is only partly the same has less than the last of these.
SAME = 1.0
RENAMED = 0.9
RESHAPED = 0.75
_PARTLY = 0.7
_FEWEST_TOKENS = 4  # in a part that says something
_LONGEST = 400  # characters that are looked at

_OPENING = {"(": ")", "[": "]", "{": "}"}
_SKIPPED = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)


@functools.lru_cache(maxsize=1 << 14)
def likeness(one: str, other: str) -> float:
    """Return how alike two lines are, from 0 to `SAME`."""
    if expression(one) == expression(other):
        return SAME
    if not one or not other:
        return 0.0
    if abstracted(one) == abstracted(other):
        return RENAMED
    if _shape(one) == _shape(other):
        return RESHAPED
    ours, theirs = _tokens(one), _tokens(other)
    if not ours or not theirs:
        return 0.0
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    ratio = matcher.ratio()
    longest = max((block.size for block in matcher.get_matching_blocks()), default=0)
    if longest >= _FEWEST_TOKENS:  # a part of a statement that is written in several lines
        ratio = max(ratio, longest / min(len(ours), len(theirs)))
    return _PARTLY * ratio


@functools.lru_cache(maxsize=1 << 14)
def expression(line: str) -> str:
    """Return a text that is equal for lines that hold the same expression."""
    value = _value(line)
    return " ".join(_tokens(line)) if value is None else ast.dump(value)


@functools.lru_cache(maxsize=1 << 14)
def abstracted(line: str) -> str:
    """Return a text that is equal for lines whose expressions differ only in their local names.

    Names are numbered as they occur. What is called, and what attributes of modules are of, keeps
    its name.
    """
    return _numbered(line, keeps_called=True)


def _shape(line: str) -> str:
    return _numbered(line, keeps_called=False)


def _numbered(line: str, *, keeps_called: bool) -> str:
    value = _value(line)
    if value is None:
        return " ".join(_tokens(line))
    try:
        return ast.dump(_Numbering(keeps_called=keeps_called).visit(copy.deepcopy(value)))
    except RecursionError:
        return " ".join(_tokens(line))


class _Numbering(ast.NodeTransformer):
    """Names replaced by their numbers, in the order in which they occur."""

    def __init__(self, *, keeps_called: bool) -> None:
        self._keeps_called = keeps_called
        self._numbers: dict[str, int] = {}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not self._keeps_called:
            return self.generic_visit(node)
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [self.visit(argument) for argument in node.keywords]
        if not isinstance(_root(node.func), ast.Name):
            node.func = self.visit(node.func)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        number = self._numbers.setdefault(node.id, len(self._numbers))
        return ast.Name(f"_{number}", node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        number = self._numbers.setdefault(node.arg, len(self._numbers))
        return ast.arg(f"_{number}")


def _root(node: ast.expr) -> ast.expr:
    """Return what a chain of attributes is of: the name `jax` in `jax.nn.gelu`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


@functools.lru_cache(maxsize=1 << 14)
def _value(line: str) -> ast.expr | None:
    """Return the expression that a line holds; None where it is not one, nor the start of one."""
    text = line.strip()[:_LONGEST]
    for candidate in (text, text + _closing(text), f"{text} pass"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the user's escapes, say
                statements = ast.parse(candidate).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return _value_of(statements[-1]) if statements else None
    return None


def _value_of(statement: ast.stmt) -> ast.expr | None:
    if isinstance(statement, ast.AugAssign):
        target = copy.deepcopy(statement.target)
        for node in ast.walk(target):
            if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
                node.ctx = ast.Load()
        return ast.BinOp(target, statement.op, statement.value)
    if isinstance(statement, ast.If | ast.While):
        return statement.test
    if isinstance(statement, ast.For):
        return statement.iter
    if isinstance(statement, ast.With):
        return statement.items[-1].context_expr
    return getattr(statement, "value", None)


def _closing(text: str) -> str:
    """Return the brackets that close those a line leaves open."""
    still: list[str] = []
    for token in _tokens(text):
        if token in _OPENING:
            still.append(_OPENING[token])
        elif still and token == still[-1]:
            still.pop()
    return "".join(reversed(still))


@functools.lru_cache(maxsize=1 << 14)
def _tokens(line: str) -> tuple[str, ...]:
    words: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(line.strip()[:_LONGEST]).readline):
            if token.type not in _SKIPPED:
                words.append(token.string)
    except (tokenize.TokenError, SyntaxError):  # brackets are left open
        pass
    return tuple(words)
