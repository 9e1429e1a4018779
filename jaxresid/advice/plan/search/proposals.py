"""Propose names for values that have none."""

from __future__ import annotations

import ast
import functools
import keyword
import linecache
import os
import re
from collections.abc import Iterable

from jaxresid.results import Expression


def propose_name(expression: Expression, cwd: str, taken: Iterable[str]) -> str:
    """Return a checkpoint_name for the value of an expression, numbered where it is taken.

    It is the variable that the expression is assigned to; inside a longer expression, that one and
    what the value is, `hidden_dot`, `out_gelu`; the function's name where nothing is assigned.
    """
    target, is_whole = _assigned(expression, cwd)
    name = target or _function(expression)
    if not is_whole:
        name = f"{name}_{_describing_word(expression.code)}"
    used = set(taken)
    if name not in used:
        return name
    return next(f"{name}_{i}" for i in range(2, len(used) + 3) if f"{name}_{i}" not in used)


def _assigned(expression: Expression, cwd: str) -> tuple[str | None, bool]:
    """Return the variable that an expression is assigned to, and whether it is the whole value.

    The expression may also be a part of what is assigned.
    """
    for node, start, end in _assignments(os.path.join(cwd, expression.file)):
        here = (expression.line, expression.column), (expression.end_line, expression.end_column)
        if start <= here[0] and here[1] <= end:
            return node, (start, end) == here
    return None, False


_Place = tuple[int, int]


@functools.cache
def _assignments(file: str) -> tuple[tuple[str, _Place, _Place], ...]:
    """Return what a file assigns to single variables, inner assignments first.

    Each is the variable with the start and the end of the value.
    """
    lines = linecache.getlines(file)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        if isinstance(target, ast.Name) and value.end_lineno and value.end_col_offset is not None:
            start = value.lineno, _characters(lines[value.lineno - 1], value.col_offset)
            end = value.end_lineno, _characters(lines[value.end_lineno - 1], value.end_col_offset)
            found.append((target.id.strip("_") or target.id, start, end))
    return tuple(reversed(found))


def _characters(line: str, column: int) -> int:
    return len(line.encode()[:column].decode(errors="replace"))


def _describing_word(code: str) -> str:
    """Return a word for what code computes: `gelu` for `jax.nn.gelu(x)`, `dot` for `x @ w`."""
    try:
        node = ast.parse(f"({code}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return "value"
    if isinstance(node, ast.BinOp):
        return _OPERATORS.get(type(node.op), "value")
    if not isinstance(node, ast.Call):
        return "value"
    found = node.func
    return _word(found.attr if isinstance(found, ast.Attribute) else getattr(found, "id", ""))


_OPERATORS: dict[type[ast.operator], str] = {
    ast.MatMult: "dot",
    ast.Add: "sum",
    ast.Sub: "difference",
    ast.Mult: "product",
    ast.Div: "quotient",
    ast.Pow: "power",
}


def _function(expression: Expression) -> str:
    parts = [p for p in expression.function.split(".") if "<" not in p and p != "__call__"]
    return _word(parts[-1] if parts else "")


def _word(text: str) -> str:
    word = re.sub(r"\W", "", text).strip("_").lower()
    return word if word and not keyword.iskeyword(word) else "value"
