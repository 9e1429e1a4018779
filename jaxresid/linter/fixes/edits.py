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
    """Return the fix that binds a discarded value to the name it should have.

    Args:
      facts: the facts of the module.
      node: the expression whose value is discarded.
      target: the expression to assign it to.
    """
    span = facts.source.span(node)
    name = ast.unparse(target)
    at = Span(span.row, span.column, span.row, span.column)
    return Fix(f"Assign the result to `{name}`", (Edit(at, f"{name} = "),), "unsafe")


def _minimal(source: SourceText, edit: Edit) -> Edit:
    """Return the same edit without the text at its ends that does not change."""
    start, end = source.start(edit.span), source.end(edit.span)
    old, new = source.text[start:end], edit.text
    # commonprefix goes by character, which is what is wanted here.
    same = len(os.path.commonprefix([old, new]))  # noqa: RUF071
    old, new = old[same:], new[same:]
    tail = len(os.path.commonprefix([old[::-1], new[::-1]]))  # noqa: RUF071
    return Edit(source.between(start + same, end - tail), new[: len(new) - tail])


def set_keyword(source: SourceText, call: ast.Call, name: str, value: str) -> Edit | None:
    """Return the edit that gives a keyword of a call a value.

    The keyword is added at the end where it is missing.

    Args:
      source: the source of the module.
      call: the call.
      name: the keyword.
      value: the source text of the value.
    """
    for keyword in call.keywords:
        if keyword.arg == name:
            return Edit(source.span(keyword.value), value)
    written = read_arguments(source, call)
    return None if written is None else _rewritten(source, written.with_keyword(name, value))


def remove_argument(source: SourceText, call: ast.Call, argument: ast.expr) -> Edit | None:
    """Return the edit that removes one argument from a call.

    Args:
      source: the source of the module.
      call: the call.
      argument: the value of the argument, positional or by keyword.
    """
    return remove_arguments(source, call, (argument,))


def remove_arguments(
    source: SourceText, call: ast.Call, arguments: Iterable[ast.expr]
) -> Edit | None:
    """Return the edit that removes some arguments from a call.

    Args:
      source: the source of the module.
      call: the call.
      arguments: the values of the arguments, positional or by keyword.
    """
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


def add_import(facts: Facts, module: str, name: str | None = None) -> Edit:
    """Return the edit that adds an import after those at the top of the module.

    The import is `from module import name`, or `import module` where there is no name.
    """
    statement = f"from {module} import {name}" if name else f"import {module}"
    tree = facts.names.tree
    lines = facts.source.lines
    # After a `#!`, an encoding, a licence: the first two mean nothing on any other line.
    row = 1 + next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    for node in tree.body:
        is_docstring = (
            node is tree.body[0]
            and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if is_docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
            row = (node.end_lineno or node.lineno) + 1
        else:
            break
    else:
        row = len(lines) + 1
    newline = "\r\n" if "\r\n" in facts.source.text else "\n"
    lead = "" if row <= len(lines) or facts.source.text.endswith("\n") else newline
    return Edit(Span(row, 0, row, 0), f"{lead}{statement}{newline}")


def name_for(facts: Facts, qualname: str) -> str | None:
    """Return how the module already spells something of another module.

    None is returned where it does not import what it needs.
    """
    for binding_list in facts.names.root.bindings.values():
        for binding in binding_list:
            if binding.kind != "import":
                continue
            if binding.qualname == qualname:
                return binding.name
            if qualname.startswith(f"{binding.qualname}."):
                return binding.name + qualname[len(binding.qualname) :]
    return None
