"""References to the checkpoint family in a file, found without the linter: what it is judged by.

Deliberately simple, and apart from `jaxresid.linter.resolve`: imports and plain aliases of the
whole file, and no scopes, so that what the linter fails to resolve is counted as well.
"""

import ast
from dataclasses import dataclass

FAMILY = {"jax", "flax", "haiku", "equinox", "haliax", "penzai", "brainstate", "objax", "ninjax"}
WRAPPERS = {"checkpoint", "remat", "filter_checkpoint", "remat_scan", "remat_call"}
POLICIES = "checkpoint_policies"


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """A call, a decorator or another use of a checkpoint, or of a policy outside of one.

    Attributes:
      row: the first row of the call or the expression, from 1.
      end_row: its last row.
      name: the qualified name.
    """

    row: int
    end_row: int
    name: str


def references(source: str) -> tuple[Reference, ...]:
    """Return the references in a file in source order; none where it is not Python.

    Args:
      source: the file's text.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    origins = _origins(tree)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    wrapped: list[Reference] = []
    policies: list[Reference] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if isinstance(parents[node], ast.Attribute):
            continue
        name = _qualified(node, origins)
        if name is None or name.split(".")[0] not in FAMILY:
            continue
        parent = parents[node]
        whole = parent if isinstance(parent, ast.Call) else node
        assert whole.end_lineno is not None
        if name.split(".")[-1] in WRAPPERS:
            wrapped.append(Reference(whole.lineno, whole.end_lineno, name))
        elif POLICIES in name.split("."):
            policies.append(Reference(node.lineno, node.end_lineno or node.lineno, name))
    alone = (p for p in policies if not any(w.row <= p.row <= w.end_row for w in wrapped))
    return tuple(sorted({*wrapped, *alone}))


def _origins(tree: ast.Module) -> dict[str, str]:
    """Return local name -> qualified name, of imports and of aliases of what was imported."""
    origins: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                first = item.name.split(".")[0]
                origins[item.asname or first] = item.name if item.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for item in node.names:
                origins[item.asname or item.name] = f"{node.module}.{item.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
            name = _qualified(node.value, origins)
            if name and name.split(".")[-1] in WRAPPERS and name.split(".")[0] in FAMILY:
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        origins.setdefault(target.id, name)
    return origins


def _qualified(node: ast.expr, origins: dict[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in origins:
        return None
    return ".".join([origins[node.id], *reversed(parts)])
