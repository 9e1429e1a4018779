"""Find where a function asks for the truth of one of its parameters.

A traced value has none: `if train:`, `not train` and `bool(train)` raise a
TracerBoolConversionError. The parameter is followed into functions and modules that are defined in
the same module, and into the layers of Flax that branch on an argument themselves.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import nn_modules
from jaxresid.linter.resolve.names import External, FunctionNode

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_MAX_DEPTH = 4
# What makes a Python number of its argument.
_CONVERSIONS = frozenset({"bool", "int", "float", "range"})
_ORDER = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
# Layers that branch on an argument, of their constructor or of their call: the argument's name,
# and that of the rate, where one of zero spares them the question.
_LAYERS = {
    "flax.linen.Dropout": ("deterministic", "rate"),
    "flax.linen.BatchNorm": ("use_running_average", None),
    "flax.linen.MultiHeadDotProductAttention": ("deterministic", "dropout_rate"),
    "flax.linen.MultiHeadAttention": ("deterministic", "dropout_rate"),
    "flax.linen.SelfAttention": ("deterministic", "dropout_rate"),
    "flax.nnx.Dropout": ("deterministic", "rate"),
    "flax.nnx.BatchNorm": ("use_running_average", None),
}


def decision(facts: Facts, function: FunctionNode, name: str, depth: int = 0) -> ast.expr | None:
    """Return the expression that needs the truth of a parameter, None where none is seen.

    None is also returned where the function asks for the parameter's type first.
    """
    if depth > _MAX_DEPTH:
        return None
    found = None
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or node.id != name or not _is(facts, node, function):
            continue
        call = facts.names.parents.get(node)
        if isinstance(call, ast.Call) and _name(call.func) in {"isinstance", "type", "callable"}:
            return None
        if found is None and (_is_asked(facts, node) or _is_handed_on(facts, node, depth)):
            found = node
    return found


def _is(facts: Facts, node: ast.Name, function: FunctionNode) -> bool:
    """Return whether a name is read and certainly is the parameter of a function."""
    if not isinstance(node.ctx, ast.Load):
        return False
    bindings = facts.names.bindings(node)
    return [b.kind for b in bindings] == ["param"] and bindings[0].owner is function


def _name(func: ast.expr) -> str:
    return func.id if isinstance(func, ast.Name) else ""


def _is_asked(facts: Facts, node: ast.expr) -> bool:
    """Return whether the code around a value needs its truth."""
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
    """Return whether a value is given to something visible that needs its truth."""
    parent = facts.names.parents.get(node)
    keyword = parent.arg if isinstance(parent, ast.keyword) else None
    call = facts.names.parents.get(parent) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or call.func is node:
        return False
    position = next((i for i, a in enumerate(call.args) if a is node), None)
    if any(isinstance(a, ast.Starred) for a in call.args) or (keyword is None and position is None):
        return False
    origin = facts.names.single_origin(call.func)
    if isinstance(origin, External):  # `nn.Dropout(0.1, deterministic=train)`
        return _layer_asks(facts, origin, call, keyword)
    if isinstance(
        origin, ast.Call
    ):  # `nn.Dropout(0.1)(x, deterministic=train)`, `Block()(x, train)`
        made = facts.names.single_origin(origin.func)
        if isinstance(made, External):
            return _layer_asks(facts, made, origin, keyword)
    function, implicit = _callee(facts, call)
    if function is None or getattr(function, "decorator_list", None):
        decorators = getattr(function, "decorator_list", [])
        if function is None or any(not _is_compact(facts, d) for d in decorators):
            return False
    args = [*function.args.posonlyargs, *function.args.args][implicit:]
    names = [a.arg for a in args]
    if keyword is None and position is not None and position < len(names):
        keyword = names[position]
    known = {*names, *(a.arg for a in function.args.kwonlyargs)}
    return keyword in known and decision(facts, function, keyword, depth + 1) is not None


def _is_compact(facts: Facts, decorator: ast.expr) -> bool:
    origin = facts.names.single_origin(decorator)
    return isinstance(origin, External) and origin.qualname in {
        "flax.linen.compact",
        "flax.linen.nowrap",
        "jax.named_call",
    }


def _callee(facts: Facts, call: ast.Call) -> tuple[FunctionNode | None, int]:
    """Return the function that a call runs, and how many arguments come before the call's own."""
    origin = facts.names.single_origin(call.func)
    if isinstance(origin, (ast.FunctionDef, ast.Lambda)):
        bound = isinstance(call.func, ast.Attribute) and facts.names.class_of(origin) is not None
        return origin, int(bound)
    made = nn_modules.instance_class(facts, call.func)
    if made is None and isinstance(origin, ast.Call):
        cls = facts.names.single_origin(origin.func)
        made = cls if isinstance(cls, ast.ClassDef) else None
    if isinstance(made, ast.ClassDef):
        return facts.names.method(made, "__call__"), 1
    return None, 0


def _layer_asks(facts: Facts, layer: External, made: ast.Call, keyword: str | None) -> bool:
    """Return whether a layer of Flax branches on an argument of its constructor or its call.

    Args:
      facts: the facts of the module.
      layer: the layer's class.
      made: the call of its constructor.
      keyword: the name by which the argument is given.
    """
    argument, rate = _LAYERS.get(layer.qualname, (None, None))
    if argument is None or keyword != argument:
        return False
    if rate is None:
        return True
    given = next((k.value for k in made.keywords if k.arg == rate), None)
    if given is None and rate == "rate" and made.args:
        given = made.args[0]
    return given is not None and not _may_be_zero(facts, given)


def _may_be_zero(facts: Facts, node: ast.expr) -> bool:
    """Return whether a rate is zero as the code stands: itself, or by the default of a field."""
    values = [*_defaults(facts, node)]
    return any(isinstance(v, ast.Constant) and not v.value for v in values)


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
