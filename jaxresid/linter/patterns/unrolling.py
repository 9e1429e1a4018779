"""Tell whether a staged loop is unrolled completely, so that no loop is left.

Shared by the rules on `prevent_cse` (JXR4).
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Loop
    from jaxresid.linter.resolve.names import Binding

# Where the loops take the length and the unrolling, by the end of their name.
SCANS = frozenset({"jax.lax.scan", "haiku.scan"})
_CURRIED_SCANS = frozenset({"flax.linen.scan", "flax.linen.transforms.scan", "flax.nnx.scan"})
_FORI = frozenset({"jax.lax.fori_loop", "haiku.fori_loop"})


def is_unrolled(facts: Facts, loop: Loop) -> bool:
    """Return whether the code shows that a loop is unrolled completely.

    It is with `unroll=True`, an unrolling of at least the length, or a length of 1. A parameter
    has the value of its default where no call that is visible gives another.
    """
    if loop.arguments.dynamic:
        return False
    length = _length(facts, loop)
    if length == 1:
        return True
    if loop.qualname not in SCANS | _CURRIED_SCANS | _FORI and not loop.api.factory:
        return False
    unroll = unroll_argument(loop)
    return unroll is not None and _is_complete(facts, loop, unroll, length)


def unrolling_choice(facts: Facts, loop: Loop) -> tuple[ast.expr, bool] | None:
    """Return the test and its truth of `unroll=n if unroll_layers else 1`, else None."""
    unroll = None if loop.arguments.dynamic else unroll_argument(loop)
    bindings = facts.names.bindings(unroll) if isinstance(unroll, ast.Name) else ()
    if len(bindings) == 1 and bindings[0].kind == "assign":
        unroll = bindings[0].value
    match unroll:
        case ast.IfExp(test=test, body=body, orelse=orelse):
            length = _length(facts, loop)
            arms = [_is_complete(facts, loop, arm, length) for arm in (body, orelse)]
            return (test, arms[0]) if arms[0] != arms[1] else None
    return None


def _is_complete(facts: Facts, loop: Loop, argument: ast.expr, length: int | None) -> bool:
    unroll = _value(facts, argument)
    if unroll is True:
        return True
    if type(unroll) is int and length is not None:
        return 0 < length <= unroll
    return _is_length(loop, argument)


def unroll_argument(loop: Loop) -> ast.expr | None:
    """Return the unrolling that a loop is given, None where it has its default."""
    position = 5 if loop.qualname in SCANS else 2 if loop.api.factory else None
    return loop.arguments.get(position, "unroll")


def _length_argument(loop: Loop) -> ast.expr | None:
    if loop.api.factory:
        return loop.arguments.get(0, "num_layers")
    return loop.arguments.get(3 if loop.qualname in SCANS else None, "length")


def _is_length(loop: Loop, unroll: ast.expr) -> bool:
    """Return whether an unrolling is written as the length, or as `len(xs)` or `xs.shape[0]`."""
    if isinstance(unroll, ast.Constant) or loop.qualname in _FORI:
        return False
    text = ast.unparse(unroll)
    length = _length_argument(loop)
    if length is not None and isinstance(unroll, (ast.Name, ast.Attribute)):
        return ast.unparse(length) == text
    xs = loop.arguments.get(2, "xs") if loop.qualname in SCANS else None
    if not isinstance(xs, (ast.Name, ast.Attribute)):
        return False
    return text in {f"len({ast.unparse(xs)})", f"{ast.unparse(xs)}.shape[0]"}


def _length(facts: Facts, loop: Loop) -> int | None:
    get = loop.arguments.get
    if loop.qualname in _FORI:
        lower, upper = _value(facts, get(0, "lower")), _value(facts, get(1, "upper"))
        return upper - lower if type(lower) is int and type(upper) is int else None
    if loop.qualname not in SCANS | _CURRIED_SCANS and not loop.api.factory:
        return None
    length = _value(facts, _length_argument(loop))
    if type(length) is int:
        return length
    return _arange(facts, get(2, "xs")) if loop.qualname in SCANS else None


def _arange(facts: Facts, xs: ast.expr | None) -> int | None:
    if not isinstance(xs, ast.Call) or len(xs.args) != 1 or xs.keywords:
        return None
    if "jax.numpy.arange" not in facts.names.qualnames(xs.func):
        return None
    length = _value(facts, xs.args[0])
    return length if type(length) is int else None


def _value(facts: Facts, node: ast.expr | None) -> object:
    """Return the value of a literal, a name that has one or a parameter by default, else None."""
    bindings = facts.names.bindings(node) if isinstance(node, ast.Name) else ()
    if len(bindings) == 1 and bindings[0].kind == "param":
        return _default(facts, bindings[0])
    value = facts.names.constant(node)
    return None if value is ... else value


def _default(facts: Facts, parameter: Binding) -> object:
    function = parameter.owner
    if not isinstance(parameter.value, ast.Constant) or not isinstance(function, ast.FunctionDef):
        return None
    if facts.contexts.remote_uses(function):
        return None
    args = [*function.args.posonlyargs, *function.args.args]
    if facts.names.class_of(function) is not None:
        args = args[1:]  # `self` is not among the arguments of a call
    position = args.index(parameter.node) if parameter.node in args else len(args)
    named = (n for n in facts.names.attributes if n.attr == function.name)
    for name in (*facts.names.loads.get(function.name, ()), *named):
        call = facts.names.parents[name]
        if not isinstance(call, ast.Call) or call.func is not name:
            return None  # a partial, or a derivative, whose caller may give it
        if len(call.args) > position or any(isinstance(a, ast.Starred) for a in call.args):
            return None
        if any(k.arg in {None, parameter.name} for k in call.keywords):
            return None
    return parameter.value.value
