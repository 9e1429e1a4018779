"""Walk syntax trees, in a third of the time of `ast.walk`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

# What holds no node, or one of those without a place of their own: `Load`, `Add`, `Lt`.
_NO_NODES = frozenset(
    """
    ctx op ops id attr arg type_comment kind conversion is_async simple level module asname
    """.split()
)
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {ast.Constant: (), ast.alias: ()}


def node_fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """Return the fields of a kind of node that may hold nodes, the last one first."""
    known = _FIELDS.get(kind)
    if known is None:
        fields = (f for f in reversed(kind._fields) if f not in _NO_NODES)
        known = _FIELDS[kind] = tuple(fields)
    return known


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, in source order; no `Load`, `Add` and the like."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        for name in _FIELDS.get(type(node)) or node_fields(type(node)):
            value = getattr(node, name, None)
            if isinstance(value, list):
                stack += [child for child in reversed(value) if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST):
                stack.append(value)
