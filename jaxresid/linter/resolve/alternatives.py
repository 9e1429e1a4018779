"""Tell what a flag chooses between: one arm of an `if` or the other, a checkpoint or none."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxresid.linter.resolve.names import Origin

if TYPE_CHECKING:
    from jaxresid.linter.resolve.sites import Sites


def is_other_arm(facts: Sites, node: ast.AST, choice: ast.If, inside: bool) -> bool:
    """Return whether a node runs exactly where the given arm of an `if` does not.

    Args:
      inside: whether the given arm is its body.
    """
    for parent, child in facts.names.path(node):
        if parent is choice:
            return child in (choice.orelse if inside else choice.body)
        block = getattr(parent, "body", None)
        if isinstance(block, list) and choice in block and child in block:
            # After the `if`, whose arm has returned.
            last = (choice.body if inside else choice.orelse)[-1:]
            returned = bool(last) and isinstance(last[0], ast.Return)
            return returned and block.index(child) > block.index(choice)
    return False


def replaces_checkpoint(facts: Sites, call: ast.AST, is_target: Callable[[Origin], bool]) -> bool:
    """Return whether a call takes the place of one of a checkpointed function, by some flag."""
    if not isinstance(call, ast.Call):
        return False
    callee: ast.expr = call
    while isinstance(callee, ast.Call):
        callee = callee.func
    for origin in facts.names.origins(callee):
        site = facts.site_of(origin) if isinstance(origin, ast.Call) else None
        if site is not None and any(map(is_target, facts.targets(site))):
            return True
    return any(
        any(map(is_target, facts.targets(site))) and is_other_arm(facts, call, *arm)
        for site, arm in facts.chosen_sites.get(facts.names.function(call), ())
    )
