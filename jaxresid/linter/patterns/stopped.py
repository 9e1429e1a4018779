"""Tell where `stop_gradient` keeps derivatives away from a function: its arguments or results."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from jaxresid.linter.resolve import results
from jaxresid.linter.resolve.names import Binding, External, FunctionNode
from jaxresid.linter.text.trees import walk

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use

_STOPS = frozenset({"jax.lax.stop_gradient"})
_TREE_MAPS = frozenset({"jax.tree.map", "jax.tree_map", "jax.tree_util.tree_map"})
# Attributes of an array that no derivative passes through.
STATIC = frozenset({"shape", "dtype", "ndim", "size"})

_MAX_DEPTH = 6


def is_stopped(facts: Facts, node: ast.expr, depth: int = 0) -> bool:
    """Return whether every value of an expression has certainly gone through `stop_gradient`."""
    if depth > _MAX_DEPTH:
        return False
    match node:
        case ast.Call():
            return is_stop(facts, node) or _returns_stopped(facts, node, depth)
        case ast.Tuple(elts=[_, *_] as elements) | ast.List(elts=[_, *_] as elements):
            return all(
                isinstance(e, ast.Constant) or is_stopped(facts, e, depth + 1) for e in elements
            )
        case ast.Dict(values=[_, *_] as elements):
            return all(is_stopped(facts, e, depth + 1) for e in elements)
        case ast.Subscript(value=inner):
            return is_stopped(facts, inner, depth + 1)
        case ast.Name():
            bindings = facts.names.bindings(node)
            return bool(bindings) and all(
                b.kind == "assign"
                and b.value is not None
                and not b.element
                and (is_stopped(facts, b.value, depth + 1) or _is_filled(facts, b, depth))
                for b in bindings
            )
    return False


def _is_filled(facts: Facts, binding: Binding, depth: int) -> bool:
    """Return whether an empty dict gets stopped values, item by item, and nothing else."""
    if not isinstance(binding.value, ast.Dict) or binding.value.keys:
        return False
    parents, filled = facts.names.parents, False
    for load in facts.names.loads_of(binding):
        parent = parents.get(load)
        match parent:
            case ast.Return():
                continue
            case ast.Subscript(value=value, ctx=ast.Store()) if value is load:
                statement = parents.get(parent)
                if not isinstance(statement, ast.Assign) or not is_stopped(
                    facts, statement.value, depth + 1
                ):
                    return False
                filled = True
            case _:
                return False
    return filled


def _returns_stopped(facts: Facts, call: ast.Call, depth: int) -> bool:
    function = facts.names.single_origin(call.func)
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return False
    nodes = list(results.own_nodes(function))
    if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in nodes):
        return False
    returned = [n.value for n in nodes if isinstance(n, ast.Return)]
    return bool(returned) and all(
        value is not None and is_stopped(facts, value, depth + 1) for value in returned
    )


def is_stop(facts: Facts, call: ast.Call) -> bool:
    """Return whether a call is `stop_gradient(...)` or maps it over a tree."""
    qualnames = facts.names.qualnames(call.func)
    if any(q in _STOPS for q in qualnames):
        return True
    return (
        any(q in _TREE_MAPS for q in qualnames)
        and bool(call.args)
        and any(q in _STOPS for q in facts.names.qualnames(call.args[0]))
    )


def _all_loads_stopped(facts: Facts, bindings: Iterable[Binding]) -> bool:
    """Return whether something reads the values, and nothing before they are stopped."""
    seen = False
    for binding in bindings:
        for load in facts.names.loads_of(binding):
            node: ast.AST = load
            parent = facts.names.parents.get(node)
            while isinstance(parent, (ast.Tuple, ast.List)) or (
                isinstance(parent, ast.Subscript) and parent.value is node
            ):
                node, parent = parent, facts.names.parents.get(parent)
            if isinstance(parent, ast.Attribute) and parent.attr in STATIC:
                continue
            if not (isinstance(parent, ast.Call) and node in parent.args):
                return False
            if not is_stop(facts, parent):
                return False
            seen = True
    return seen


def arguments_are_stopped(facts: Facts, site: Site, use: Use) -> bool:
    """Return whether a call gives a visible, closed function nothing but stopped values."""
    call = use.node
    if not isinstance(call, ast.Call) or not {"jit", "vmap"}.issuperset(use.through):
        return False
    arguments = [*call.args, *(k.value for k in call.keywords)]
    if any(k.arg is None for k in call.keywords):
        return False
    arrays = [a for a in arguments if not isinstance(a, ast.Constant)]
    if not arrays or not all(is_stopped(facts, a) for a in arrays):
        return False
    return all(_is_closed(facts, target) for target in facts.targets(site))


def _is_closed(facts: Facts, target: object) -> bool:
    """Return whether all the arrays that a function sees are its arguments."""
    if isinstance(target, External):
        return target.qualname.startswith(("jax.numpy.", "jax.nn.", "jax.lax."))
    if not isinstance(target, FunctionNode):
        return False
    own: set[ast.AST] = {target, *(n for n in walk(target) if isinstance(n, FunctionNode))}
    body = target.body if isinstance(target.body, list) else [target.body]
    for name in (n for part in body for n in walk(part)):
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load):
            for binding in facts.names.bindings(name):
                home = facts.names.function(binding.node)
                if binding.kind == "param":
                    around = facts.names.ancestors(binding.node)
                    home = next((p for p in around if isinstance(p, FunctionNode)), None)
                if home is not None and home not in own:
                    return False
                if name.id == "self":
                    return False
    return True


def stops_inside(facts: Facts, site: Site) -> str:
    """Return, in words, how a checkpointed function itself keeps derivatives out; empty if not."""
    target = facts.target(site)
    if not isinstance(target, (ast.FunctionDef, ast.Lambda)):
        return ""
    if isinstance(target, ast.Lambda):
        returned: list[ast.expr | None] = [target.body]
    else:
        nodes = list(results.own_nodes(target))
        if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in nodes):
            return ""
        returned = [n.value for n in nodes if isinstance(n, ast.Return)]
    if returned and all(r is not None and is_stopped(facts, r) for r in returned):
        return "its results go through stop_gradient"
    if target.args.vararg or target.args.kwarg or not _is_closed(facts, target):
        return ""
    arguments = (*target.args.posonlyargs, *target.args.args, *target.args.kwonlyargs)
    parameters = {b for a in arguments for b in _parameters(facts, target, a.arg)}
    if _all_loads_stopped(facts, parameters):
        return "its arguments go through stop_gradient"
    return ""


def _parameters(facts: Facts, function: FunctionNode, name: str) -> Iterable[Binding]:
    for load in facts.names.loads.get(name, ()):
        for binding in facts.names.bindings(load):
            if binding.kind == "param" and binding.owner is function:
                yield binding
