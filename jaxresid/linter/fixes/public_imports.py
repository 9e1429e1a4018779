"""Rewrite imports and attributes to use the public module of a name of the checkpoint family."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from jaxresid.base.violations import Edit, Fix
from jaxresid.linter.fixes import edits

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


def import_from_public(
    facts: Facts, node: ast.ImportFrom, alias: ast.alias, public: str
) -> Fix | None:
    """Return the fix that imports one name of a statement from its public module.

    The module keeps the name that it is bound to. None is returned where the statement cannot be
    rewritten safely.
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
    """Return the fix that reads an attribute from its public module, if that is imported."""
    name = edits.name_for(facts, public)
    if name is None:
        return None
    head = name.partition(".")[0]
    if any(head in scope.bindings for scope in facts.names.scopes_around(node)):
        return None
    return Fix(f"Use `{name}`", (Edit(facts.source.span(node), name),), "safe")
