"""Edit source text, changing only the expression concerned.

Comments, quotes and line breaks inside it stay. Only what changes becomes part of the edit.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from jaxresid.base.violations import Edit, Fix, Span
from jaxresid.linter.fixes.argument_list import ArgumentList, read_arguments, sorted_arguments

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts
    from jaxresid.linter.text.source import SourceText


def replace(source: SourceText, node: ast.expr | ast.stmt, text: str) -> Edit:
    """Return the edit that replaces a node by `text`."""
    return Edit(source.span(node), text)


def bind_result(facts: Facts, node: ast.expr, target: ast.expr) -> Fix:
    """Return the fix that binds a discarded value to the name it should have."""
    span = facts.source.span(node)
    name = ast.unparse(target)
    at = Span(span.row, span.column, span.row, span.column)
    return Fix(f"Assign the result to `{name}`", (Edit(at, f"{name} = "),), "unsafe")


def _minimal(source: SourceText, edit: Edit) -> Edit:
    start, end = source.start(edit.span), source.end(edit.span)
    old, new = source.text[start:end], edit.text
    # commonprefix goes by character, which is what is wanted here.
    same = len(os.path.commonprefix([old, new]))  # noqa: RUF071
    old, new = old[same:], new[same:]
    tail = len(os.path.commonprefix([old[::-1], new[::-1]]))  # noqa: RUF071
    return Edit(source.between(start + same, end - tail), new[: len(new) - tail])


def set_keyword(source: SourceText, call: ast.Call, name: str, value: str) -> Edit | None:
    """Return the edit that gives a keyword a value, as source text; at the end if it is missing."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return Edit(source.span(keyword.value), value)
    written = read_arguments(source, call)
    return None if written is None else _rewritten(source, written.with_keyword(name, value))


def remove_argument(source: SourceText, call: ast.Call, argument: ast.expr) -> Edit | None:
    """Return the edit that removes the argument of a call that has this value."""
    return remove_arguments(source, call, (argument,))


def remove_arguments(
    source: SourceText, call: ast.Call, arguments: Iterable[ast.expr]
) -> Edit | None:
    """Return the edit that removes the arguments of a call that have these values."""
    removed = {id(a) for a in arguments}
    values = [a.value if isinstance(a, ast.keyword) else a for a in sorted_arguments(call)]
    indices = {i for i, value in enumerate(values) if id(value) in removed}
    written = read_arguments(source, call)
    if written is None or len(indices) != len(removed):
        return None
    return _rewritten(source, written.without(indices))


def _rewritten(source: SourceText, arguments: ArgumentList) -> Edit:
    span = source.between(arguments.start, arguments.end)
    return _minimal(source, Edit(span, arguments.text))


def name_for(facts: Facts, qualname: str) -> str | None:
    """Return how the module spells what has a dotted name, None where it does not import it."""
    for binding_list in facts.names.root.bindings.values():
        for binding in binding_list:
            if binding.kind != "import":
                continue
            if binding.qualname == qualname:
                return binding.name
            if qualname.startswith(f"{binding.qualname}."):
                return binding.name + qualname[len(binding.qualname) :]
    return None
