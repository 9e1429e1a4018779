"""Names for what is written that mean nothing else where it is written."""

from __future__ import annotations

import ast

from jaxresid.advice.plan.source.file_edits import FileRewrite


def names_used(file: FileRewrite, at: ast.AST) -> set[str]:
    """Return the names that mean something in the function around a node."""
    names = file.facts.names
    around = names.function(at) or names.tree
    used = {n.id for n in ast.walk(around) if isinstance(n, ast.Name)}
    used |= {a.arg for a in ast.walk(around) if isinstance(a, ast.arg)}
    used |= {n.name for n in ast.walk(around) if isinstance(n, ast.FunctionDef)}
    return used | names.root.bindings.keys()


def unused(name: str, used: set[str]) -> str:
    """Return a name that is not used, numbered where it must be; it is used from now on."""
    free = next(n for n in (name, *(f"{name}_{i}" for i in range(2, 99))) if n not in used)
    used.add(free)
    return free
