"""Treat some calls of a Python loop differently from others, by the number of the round."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from jaxresid.advice.plan.source.file_edits import FileRewrite, UnwritableError
from jaxresid.advice.plan.source.new_names import names_used

_WIDTH = 100  # of a line
_NAMES = ("i", "n", "number", "index", "call_number")


@dataclass(frozen=True, slots=True)
class Part:
    """The treatment of some calls in a row; see `PlannedPart`."""

    calls: int
    checkpointed: bool
    policy: str | None = None


def chosen(file: FileRewrite, call: ast.Call, texts: Sequence[str], parts: Sequence[Part]) -> str:
    """Return an expression that chooses one text for each part by the number of the call.

    For example `(jax.checkpoint(block) if i < 20 else block)`; on several lines where the line of
    the call would be long.
    """
    number = _numbered(file, call)
    lines = [texts[0]]
    for text, end in zip(texts[1:], accumulate(part.calls for part in parts), strict=False):
        lines += [f"if {number} < {end}", f"else {text}"]
    short = f"({' '.join(lines)})"
    row = file.source.lines[call.lineno - 1].rstrip()
    if len(row) - len(file.text(call.func)) + len(short) <= _WIDTH:
        return short
    indent = file.indent(call.lineno)
    deeper = indent + ("\t" if indent.startswith("\t") else "    ")
    return file.newline.join(["(", *(deeper + line for line in lines), f"{indent})"])


def _numbered(file: FileRewrite, call: ast.expr) -> str:
    """Return the name of the number, from 0, of the round of the loop around a call.

    The loop is given such a number where it has none.
    """
    loop = _loop(file, call)
    if loop is None:
        raise UnwritableError(
            file.where(call.lineno), "cannot tell which call this is: there is no loop around it"
        )
    target, iterated = loop.target, loop.iter
    match iterated, target:
        case ast.Call(func=ast.Name(id="range"), args=[_], keywords=[]), ast.Name(id=name):
            return name
        case (
            ast.Call(func=ast.Name(id="enumerate"), args=[_], keywords=[]),
            ast.Tuple(elts=[ast.Name(id=name), _]),
        ):
            return name
    used = names_used(file, call)
    free = next((name for name in _NAMES if name not in used), None)
    if free is None:
        raise UnwritableError(file.where(call.lineno), "no unused name is left to number the calls")
    bare = isinstance(target, ast.Tuple) and not file.text(target).startswith("(")
    opening, closing = ("(", ")") if bare else ("", "")
    file.wrap(target, f"{free}, {opening}", closing)
    file.wrap(iterated, "enumerate(", ")")
    return free


def _loop(file: FileRewrite, call: ast.expr) -> ast.For | ast.comprehension | None:
    """Return the innermost loop around a call that runs it in each round.

    The loop has to be in the same function as the call.
    """
    inner: ast.AST = call
    for outer in file.facts.names.ancestors(call):
        match outer:
            case ast.For(body=body) if inner in body:
                return outer
            case ast.While() | ast.For():
                return None
            case ast.ListComp(generators=[only], elt=elt) if inner is elt and not only.ifs:
                return only
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
                return None
        inner = outer
    return None
