"""Rewrite imports and attributes to use the public module of a name of the checkpoint family."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from jaxresid.base.violations import Edit, Fix, Span
from jaxresid.linter.fixes import edits

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


def import_from_public(
    facts: Facts, node: ast.ImportFrom, alias: ast.alias, public: str
) -> Fix | None:
    """Return the fix that imports one name of a statement from its public module.

    The module keeps the name that it is bound to. None is returned where the statement cannot be
    rewritten safely.

    Args:
      facts: the facts of the module.
      node: the import statement.
      alias: the name in the statement to import from elsewhere.
      public: the public dotted name.
    """
    module, _, name = public.rpartition(".")
    source = facts.source
    span = source.span(node)
    bound = alias.asname or alias.name
    text = f"from {module} import {name}" + (f" as {bound}" if bound != name else "")
    before = source.lines[span.row - 1][: span.column]
    if "#" in source.segment(span):
        return None
    title = f"Import `{public}`"
    if len(node.names) == 1:
        return Fix(title, (Edit(span, text),), "safe")
    if before.strip() or "\n" in source.segment(span):
        return None
    rest = ", ".join(ast.unparse(a) for a in node.names if a is not alias)
    kept = f"from {'.' * node.level}{node.module or ''} import {rest}"
    newline = "\r\n" if "\r\n" in source.text else "\n"
    return Fix(title, (Edit(span, f"{text}{newline}{before}{kept}"),), "safe")


def read_from_public(facts: Facts, node: ast.Attribute, public: str) -> Fix | None:
    """Return the fix that reads an attribute from its public module.

    None is returned where the module does not import what it takes.
    """
    name = edits.name_for(facts, public)
    if name is None or _is_shadowed(facts, node, name.partition(".")[0]):
        return None
    span: Span = facts.source.span(node)
    return Fix(f"Use `{name}`", (Edit(span, name),), "safe")


def _is_shadowed(facts: Facts, node: ast.Attribute, head: str) -> bool:
    """Return whether a function or class around a place binds a name itself."""
    root = facts.names.root
    scope = next((s for n in ast.walk(node) if (s := facts.names.scopes.get(n))), None)
    while scope is not None and scope is not root:
        if head in scope.bindings:
            return True
        scope = scope.parent
    return False
