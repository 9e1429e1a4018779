"""Tell whether all that becomes of a value ends where no derivative follows it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from jaxresid.linter.patterns.stopped import STATIC, is_stop
from jaxresid.linter.resolve import results
from jaxresid.linter.resolve.names import FunctionNode

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Use

_STOPPED = "its result goes through stop_gradient"
_CONVERTED = "its result becomes NumPy arrays or Python numbers, which no derivative passes"
# These convert what they are given, and raise for what is being differentiated. Others hand it on:
# `np.sum` calls the method of a JAX array, and `jax.device_get` returns what JAX traces.
CONVERSIONS = frozenset(
    """
    numpy.array numpy.asarray numpy.asanyarray numpy.ascontiguousarray numpy.copy numpy.float32
    numpy.float64 numpy.save numpy.savez numpy.savez_compressed
    """.split()
)
_TREE_MAPS = frozenset({"jax.tree.map", "jax.tree_map", "jax.tree_util.tree_map"})
_TO_NUMBERS = frozenset({"float", "int", "bool", "complex", "str", "repr"})
_SHOWS = frozenset({"print", "len", "isinstance", "type"})
_TO_PYTHON = frozenset({"item", "tolist", "__array__"})
# Libraries whose functions keep nothing of what they are given but in what they return.
_PURE = ("jax.", "numpy.", "diffrax.")
_MAPS = frozenset({"jax.vmap", "jax.jit", "equinox.filter_jit", "equinox.filter_vmap"})
# What takes a function and gives an object that only a solver runs it for.
_TERMS = frozenset({"diffrax.ODETerm", "diffrax.diffeqsolve"})
_LOGGERS = frozenset({"logger", "log", "logging", "_logger", "_log", "LOGGER", "LOG"})
_PASSED = frozenset({"jit", "vmap"})
_MAX_STEPS = 300


def dead_end(facts: Facts, use: Use) -> str:
    """Return, in words, why no derivative reaches a function by one use; empty where one may.

    What the function computes in a call, a loop or an ODE's term is followed to all its readers,
    and out of functions that only this module calls.
    """
    if not isinstance(use.node, ast.Call):
        return ""
    if use.kind == "escapes":
        if not _named(facts, use.node.func, _TERMS):
            return ""
    elif use.kind not in {"call", "loop"}:
        return ""
    flow = _Flow(facts)
    if not flow.ends(use.node):
        return ""
    return _CONVERTED if flow.converted else _STOPPED if flow.stopped else ""


class _Flow:
    """Where values go: whether some are converted to NumPy or numbers, or go through a stop."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._seen: set[ast.AST] = set()
        self.converted = False
        self.stopped = False

    def ends(self, node: ast.AST) -> bool:
        """Return whether everything that becomes of the value of a node ends."""
        if node in self._seen:
            return True
        self._seen.add(node)
        if len(self._seen) > _MAX_STEPS:
            return False
        parent = self._facts.names.parents.get(node)
        match parent:
            case ast.Attribute(attr=attr):
                return attr in STATIC or self.ends(parent)
            case ast.Call(func=func) if func is node:
                return self._method(parent, node)
            case ast.Call():
                return self._argument(parent)
            case ast.keyword():
                call = self._facts.names.parents.get(parent)
                return isinstance(call, ast.Call) and self._argument(call)
            case ast.Subscript(value=value) if value is not node:
                return True  # an index is an integer
            case ast.IfExp(test=test) if test is node:
                return True
            case ast.UnaryOp(op=ast.Not()) | ast.Compare() | ast.FormattedValue():
                return True
            case ast.If() | ast.While() | ast.Assert() | ast.Expr():
                return True
            case ast.Tuple() | ast.List() | ast.Dict() | ast.IfExp() | ast.BinOp() | ast.UnaryOp():
                return self.ends(parent)
            case ast.BoolOp() | ast.Subscript() | ast.Starred():
                return self.ends(parent)
            case ast.Assign(targets=targets):
                return all(self._bound(parent, target) for target in targets)
            case ast.AnnAssign(target=target):
                return self._bound(parent, target)
            case ast.NamedExpr(target=target):
                return self._bound(parent, target) and self.ends(parent)
            case ast.Return():
                return self._returned(parent)
        return False

    def _bound(self, statement: ast.AST, target: ast.expr) -> bool:
        names = self._facts.names
        match target:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return all(self._bound(statement, part) for part in parts)
            case ast.Starred(value=inner):
                return self._bound(statement, inner)
            case ast.Name(id=name):
                scope = names.scopes[target]
                if name in scope.outer or scope.parent is None:
                    return False  # other code may read a global
                own = [b for b in scope.bindings.get(name, ()) if b.node is statement]
                loads = [load for binding in own for load in names.loads_of(binding)]
                home = names.function(statement)
                if any(
                    isinstance(names.parents.get(b.node), ast.AugAssign)
                    for b in scope.bindings[name]
                ):
                    return False  # what is added to goes on under its name
                return bool(own) and all(
                    names.function(load) is home and self.ends(load) for load in loads
                )
        return False

    def _method(self, call: ast.Call, func: ast.AST) -> bool:
        if not isinstance(func, ast.Attribute):
            return False  # the value is a function
        if func.attr in _TO_PYTHON:
            self.converted = True
            return True
        return self.ends(call)

    def _argument(self, call: ast.Call) -> bool:
        facts, func = self._facts, call.func
        if is_stop(facts, call):
            self.stopped = True
            return True
        if _converts(facts, call):
            self.converted = True
            return True
        if isinstance(func, ast.Name) and not facts.names.bindings(func):
            self.converted |= func.id in _TO_NUMBERS
            return func.id in _TO_NUMBERS | _SHOWS
        if self._is_logged(call):
            return True
        if isinstance(func, ast.Call):
            return _named(facts, func.func, _MAPS) and self.ends(call)
        qualnames = facts.names.qualnames(func)
        if qualnames:
            return all(name.startswith(_PURE) for name in qualnames) and self.ends(call)
        function = facts.names.single_origin(func) if isinstance(func, ast.Name) else None
        if not isinstance(function, (ast.FunctionDef, ast.Lambda)):
            return False
        return _keeps_nothing(function) and self.ends(call)

    def _is_logged(self, call: ast.Call) -> bool:
        parents = self._facts.names.parents
        match call.func:
            case ast.Attribute(value=ast.Name(id=name)):
                return name in _LOGGERS and isinstance(parents.get(call), ast.Expr)
        return False

    def _returned(self, statement: ast.Return) -> bool:
        facts = self._facts
        function = facts.names.function(statement)
        if not isinstance(function, ast.FunctionDef) or facts.contexts.remote_uses(function):
            return False
        is_inner = facts.names.function(function) is not None
        if not is_inner and (not function.name.startswith("_") or function.name.endswith("__")):
            return False
        uses = facts.flows.uses(function)
        return bool(uses) and all(
            u.kind in {"call", "loop"} and _PASSED.issuperset(u.through) and self.ends(u.node)
            for u in uses
        )


def _named(facts: Facts, func: ast.expr, names: frozenset[str]) -> bool:
    qualnames = facts.names.qualnames(func)
    return bool(qualnames) and all(name in names for name in qualnames)


def _converts(facts: Facts, call: ast.Call) -> bool:
    if _named(facts, call.func, CONVERSIONS):
        return True
    return (
        _named(facts, call.func, _TREE_MAPS)
        and bool(call.args)
        and _named(facts, call.args[0], CONVERSIONS)
    )


def _keeps_nothing(function: FunctionNode) -> bool:
    for node in results.own_nodes(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return False
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            return False
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            return False
    return True
