"""Tell whether a function certainly takes an array, not a module, as its first argument.

The lifted transforms of flax.linen take the first argument for a module. Shared by the framework
rules (JXR6).
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import nn_modules
from jaxresid.linter.resolve.callees import MAX_DEPTH
from jaxresid.linter.resolve.names import External, FunctionNode, Origin

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_ARRAY_MODULES = ("jax.numpy.", "jax.nn.", "jax.lax.", "jax.scipy.", "numpy.")
# Functions of arrays that flax.linen has as well.
_ACTIVATIONS = frozenset(
    """
    celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid
    log_softmax logsumexp normalize one_hot relu relu6 selu sigmoid silu soft_sign softmax softplus
    standardize swish tanh
    """.split()
)
_ARRAY_ATTRIBUTES = frozenset(
    """
    shape dtype ndim size T mT at astype reshape transpose swapaxes sum mean max min std var
    squeeze ravel flatten dot prod cumsum argmax clip conj real imag
    """.split()
)
_ARRAY_NAMES = frozenset("x xs y h carry inputs hidden hidden_states params variables".split())


def is_of_arrays(facts: Facts, node: ast.expr) -> bool:
    """Return whether an expression certainly is a function whose first argument is no module."""
    given = 0
    origin: Origin = None
    for _ in range(MAX_DEPTH):
        if isinstance(node, ast.Attribute) and node.attr == "apply":
            cls = nn_modules.instance_class(facts, node.value)
            if nn_modules.library(facts, cls) == "linen":
                return True  # takes the variables
        origin = facts.names.single_origin(node)
        if not isinstance(origin, ast.Call) or not origin.args:
            break
        if facts.is_partial(origin):
            given += len(origin.args) - 1
        elif not _is_plain_transform(facts, origin):
            break
        node = origin.args[0]
    if isinstance(origin, External):
        return is_array_function(origin)
    if isinstance(origin, (ast.FunctionDef, ast.Lambda)):
        return takes_array_first(facts, origin, given)
    return False


def is_array_function(origin: External) -> bool:
    """Return whether a name of another module is that of a function of arrays."""
    module, _, name = origin.qualname.rpartition(".")
    if module in {"flax.linen", "flax.linen.activation"}:
        return name in _ACTIVATIONS
    return origin.qualname.startswith(_ARRAY_MODULES)


def _is_plain_transform(facts: Facts, call: ast.Call) -> bool:
    """Return whether a call is that of a transform of JAX, which takes what its function takes."""
    roles = facts.roles(call.func)
    return len(roles) == 1 and roles[0].qualname in {
        "jax.jit",
        "jax.vmap",
        "jax.checkpoint",
        "jax.remat",
        "jax.grad",
        "jax.value_and_grad",
    }


def takes_array_first(facts: Facts, function: FunctionNode, given: int = 0) -> bool:
    """Return whether the first argument that a function still takes is used as an array.

    Args:
      facts: the facts of the module.
      function: the function, without the decorators that are of interest.
      given: how many arguments are bound already.
    """
    if facts.names.class_of(function) is not None:
        return False
    args = [*function.args.posonlyargs, *function.args.args][given:]
    if not args:
        return function.args.vararg is None
    first = args[0]
    if first.annotation is not None:
        text = ast.unparse(first.annotation).strip("'\"")
        return text.endswith(("Array", "ndarray"))
    uses = [
        _use(facts, node)
        for node in ast.walk(function)
        if isinstance(node, ast.Name)
        and node.id == first.arg
        and [b.node for b in facts.names.bindings(node)] == [first]
    ]
    if False in uses:
        return False
    return True in uses or first.arg in _ARRAY_NAMES


def _use(facts: Facts, node: ast.Name) -> bool | None:
    """Return whether a value is used as an array; False as a module may be, None where neither."""
    parent = facts.names.parents.get(node)
    match parent:
        case ast.BinOp() | ast.UnaryOp(op=ast.USub() | ast.Invert()):
            return True
        case ast.Subscript():
            return parent.value is node or None
        case ast.Attribute():
            return parent.attr in _ARRAY_ATTRIBUTES
        case ast.Call() if parent.func is node:
            return False
        case ast.Call():
            origin = facts.names.single_origin(parent.func)
            if isinstance(origin, External):
                return is_array_function(origin) or None
    return None
