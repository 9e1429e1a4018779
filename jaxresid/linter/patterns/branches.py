"""Find where a function asks for the truth of one of its parameters.

A traced value has none: `if train:`, `not train` and `bool(train)` raise a
TracerBoolConversionError. The parameter is followed into functions and modules of the project, and
into the layers of Flax that branch on an argument themselves.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import nn_modules
from jaxresid.linter.patterns.nn_modules import Instance
from jaxresid.linter.resolve.names import Binding, External, FunctionNode, Origin

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_MAX_DEPTH = 4
# What makes a Python number of its argument.
_CONVERSIONS = frozenset({"bool", "int", "float", "range"})
_ORDER = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
# Layers that branch on an argument, of their constructor or of their call: the argument's name,
# that of the rate, where one of zero spares them the question, and its place in the call, if any.
_LAYERS: dict[str, tuple[str, str | None, int | None]] = {
    "flax.linen.Dropout": ("deterministic", "rate", 1),
    "flax.linen.BatchNorm": ("use_running_average", None, 1),
    "flax.linen.MultiHeadDotProductAttention": ("deterministic", "dropout_rate", None),
    "flax.linen.MultiHeadAttention": ("deterministic", "dropout_rate", None),
    "flax.linen.SelfAttention": ("deterministic", "dropout_rate", 2),
    "flax.nnx.Dropout": ("deterministic", "rate", None),
    "flax.nnx.BatchNorm": ("use_running_average", None, 1),
}


def decision(facts: Facts, function: FunctionNode, name: str, depth: int = 0) -> ast.expr | None:
    """Return what needs the truth of a parameter; None also where its type is asked for first."""
    if depth > _MAX_DEPTH:
        return None
    asking = None
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or not _is(facts, node, function, name):
            continue
        call = facts.names.parents.get(node)
        match call:
            case ast.Call(func=ast.Name(id="isinstance" | "type" | "callable")):
                return None
        if asking is None and (_is_asked(facts, node) or _is_handed_on(facts, node, depth)):
            asking = node
    return asking


def _is(facts: Facts, node: ast.Name, function: FunctionNode, name: str, depth: int = 0) -> bool:
    """Return whether a name certainly is a parameter, also one that `nn.merge_param` merged."""
    if not isinstance(node.ctx, ast.Load) or depth > _MAX_DEPTH:
        return False
    match facts.names.bindings(node):
        case [Binding(kind="param", owner=owner)]:
            return owner is function and node.id == name
        case [Binding(kind="assign", value=ast.Name() as value, owner=owner)]:
            return owner is function and _is(facts, value, function, name, depth + 1)
        case [Binding(kind="assign", value=ast.Call(args=[_, _, ast.Name() as value]) as call)]:
            merges = "flax.linen.merge_param" in facts.names.qualnames(call.func)
            return merges and _is(facts, value, function, name, depth + 1)
    return False


def _is_asked(facts: Facts, node: ast.expr) -> bool:
    parent = facts.names.parents.get(node)
    match parent:
        case ast.UnaryOp(op=ast.Not()):
            return True
        case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
            return parent.test is node
        case ast.comprehension():
            return any(node is test for test in parent.ifs)
        case ast.BoolOp():
            return parent.values[-1] is not node or _is_asked(facts, parent)
        case ast.Compare(ops=[op], comparators=[other]):
            if isinstance(op, (ast.In, ast.NotIn)):
                return parent.left is node and isinstance(other, (ast.Tuple, ast.List))
            return isinstance(op, _ORDER) and _is_asked(facts, parent)
        case ast.Call(func=ast.Name(id=called)) if called in _CONVERSIONS and node in parent.args:
            return True
    return False


def _is_handed_on(facts: Facts, node: ast.Name, depth: int) -> bool:
    parent = facts.names.parents.get(node)
    keyword = parent.arg if isinstance(parent, ast.keyword) else None
    call = facts.names.parents.get(parent) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or call.func is node:
        return False
    position = next((i for i, a in enumerate(call.args) if a is node), None)
    if any(isinstance(a, ast.Starred) for a in call.args) or (keyword is None and position is None):
        return False
    functions = _callees(facts, call)
    if functions:
        return all(_asks(*f, keyword, position, depth) for f in functions)
    origin = facts.names.single_origin(call.func)
    if isinstance(origin, External):  # `nn.Dropout(0.1, deterministic=train)`
        return _layer_asks(facts, Instance(origin, (call,)), keyword, None)
    # `nn.Dropout(0.1)(x, deterministic=train)`, `self.dropout(x, train)`
    layers = nn_modules.instances(facts, call.func)
    return bool(layers) and all(_layer_asks(facts, i, keyword, position) for i in layers)


def _asks(
    facts: Facts,
    function: FunctionNode,
    implicit: int,
    keyword: str | None,
    position: int | None,
    depth: int,
) -> bool:
    decorators = [] if isinstance(function, ast.Lambda) else function.decorator_list
    if any(not _is_compact(facts, d) for d in decorators):
        return False
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)][implicit:]
    if keyword is None and position is not None and position < len(names):
        keyword = names[position]
    known = {*names, *(a.arg for a in function.args.kwonlyargs)}
    return keyword in known and decision(facts, function, str(keyword), depth + 1) is not None


def _is_compact(facts: Facts, decorator: ast.expr) -> bool:
    origin = facts.names.single_origin(decorator)
    return isinstance(origin, External) and origin.qualname in {
        "flax.linen.compact",
        "flax.linen.nowrap",
        "jax.named_call",
    }


def _callees(facts: Facts, call: ast.Call) -> list[tuple[Facts, FunctionNode, int]]:
    """Return the functions that a call may run, each with its facts and its implicit arguments."""
    home, origin = _defined(facts, facts.names.single_origin(call.func))
    if isinstance(origin, (ast.FunctionDef, ast.Lambda)):
        bound = isinstance(call.func, ast.Attribute) and home.names.class_of(origin) is not None
        return [(home, origin, int(bound))]
    callees: list[tuple[Facts, FunctionNode, int]] = []
    for instance in nn_modules.instances(facts, call.func):
        home, cls = _defined(facts, instance.cls)
        method = home.names.method(cls, "__call__") if isinstance(cls, ast.ClassDef) else None
        if method is None:
            return []
        callees.append((home, method, 1))
    return callees


def _defined(facts: Facts, origin: Origin) -> tuple[Facts, Origin]:
    return facts.definition(origin) or (facts, origin)


def _layer_asks(facts: Facts, layer: Instance, keyword: str | None, position: int | None) -> bool:
    qualname = layer.cls.qualname if isinstance(layer.cls, External) else ""
    argument, rate, place = _LAYERS.get(qualname, (None, None, None))
    if argument is None or not (keyword == argument or (keyword is None and position == place)):
        return False
    if rate is None:
        return True
    value = next((k.value for call in layer.calls for k in call.keywords if k.arg == rate), None)
    if value is None and rate == "rate" and layer.calls and layer.calls[0].args:
        value = layer.calls[0].args[0]
    if value is None:
        return False
    # A rate that is zero as the code stands: itself, or by the default of a field.
    values = _defaults(facts, value)
    return not any(isinstance(v, ast.Constant) and not v.value for v in values)


def _defaults(facts: Facts, node: ast.expr) -> Iterator[ast.expr]:
    yield node
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            owner = facts.names.class_around(node)
            for statement in owner.body if owner is not None else ():
                match statement:
                    case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                        if name == attr:
                            yield value
        case ast.Name():
            for binding in facts.names.bindings(node):
                if binding.value is not None:
                    yield binding.value
