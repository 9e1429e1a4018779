from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.patterns.checkpoint_names import EXCLUDING, policy_names
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.names import External
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

# Each was run: with its output named and saved, the matmul before it is still recomputed. Even
# where the derivative needs the output alone (exp, tanh), it is not the named one that it keeps.
_ACTIVATIONS = """
relu relu6 sigmoid softplus sparse_plus silu swish log_sigmoid leaky_relu hard_sigmoid hard_silu
hard_swish hard_tanh elu celu selu gelu soft_sign softmax log_softmax standardize squareplus mish
tanh
""".split()
_NUMPY = """
sin cos tan tanh exp exp2 expm1 log log1p sqrt square abs absolute sinh cosh arctan arcsinh
reciprocal cbrt
""".split()
_LAX = "sin cos tan tanh exp exp2 expm1 log log1p sqrt rsqrt square abs logistic erf cbrt".split()
_NONLINEARITIES = frozenset(
    {
        *(f"{m}.{n}" for m in ("jax.nn", "flax.linen", "flax.nnx") for n in _ACTIVATIONS),
        *(f"jax.numpy.{n}" for n in _NUMPY),
        *(f"jax.lax.{n}" for n in _LAX),
    }
)
_PRODUCTS = frozenset(
    {
        *(f"jax.numpy.{n}" for n in "dot matmul tensordot einsum inner".split()),
        *(f"jax.lax.{n}" for n in "dot dot_general batch_matmul".split()),
    }
)
_LAYERS = frozenset(
    {
        *(f"flax.linen.{n}" for n in "Dense DenseGeneral".split()),
        *(f"flax.nnx.{n}" for n in "Linear LinearGeneral".split()),
        "haiku.Linear",
        "equinox.nn.Linear",
    }
)
_MAX_DEPTH = 8


class NamedNonlinearityOutput(Rule):
    """The output of a nonlinearity is named, so that the matmul before it is recomputed anyway.

    ## What it does
    Finds `checkpoint_name(jax.nn.relu(x @ w), "a")`, also where the steps have variables of their
    own: an elementwise nonlinearity (or a softmax) of something that is visibly a matmul.

    ## Why is this bad?
    The backward pass of the nonlinearity needs the nonlinearity's own residual, not the named
    value. To compute it the matmul runs again: this takes as much memory as saving the matmul, and
    as much compute as saving nothing.

    ## Use instead
    Name the input of the nonlinearity: `jax.nn.relu(checkpoint_name(x @ w, "a"))`. Only the
    elementwise part is recomputed then.

    ## When is this fine?
    Where another policy saves the matmul already, and the nonlinearity is expensive. The rule is
    silent in projects that join policies with `save_from_both_policies`, and for names that a
    policy leaves out.
    """

    code = "JXR305"
    name = "named-nonlinearity-output"
    severity = "warning"
    why = "The nonlinearity's own residual is needed too, and recomputing it takes the matmul."
    help = "name the input of the nonlinearity instead"
    bad = (
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            @functools.partial(
                jax.checkpoint,
                policy=jax.checkpoint_policies.save_only_these_names("a"),
            )
            def block(w, v, x):
                h = checkpoint_name(jax.nn.relu(x @ w), "a")  # !
                return jnp.sin(h @ v)
            """
        ),
    )
    good = (
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            @functools.partial(
                jax.checkpoint,
                policy=jax.checkpoint_policies.save_only_these_names("a"),
            )
            def block(w, v, x):
                h = jax.nn.relu(checkpoint_name(x @ w, "a"))
                return jnp.sin(h @ v)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for named in facts.named:
            call = _local(facts, named.value)
            if not isinstance(call, ast.Call) or not _is_nonlinear(facts, call):
                continue
            product = _product(facts, call.args[0])
            if product is None or _is_exempt(facts, named.name):
                continue
            name = f"as `{named.name}`" if named.name else "here"
            yield self.report(
                facts,
                named.node,
                f"the output of `{ast.unparse(call.func)}` is named {name}, but saving it does "
                "not save the matmul before it, which is recomputed",
                related=stages.related_place(facts, product, "the matmul that is recomputed"),
            )


def _local(facts: Facts, node: ast.expr | None) -> ast.expr | None:
    """An expression, through one local variable."""
    if not isinstance(node, ast.Name):
        return node
    bindings = facts.names.bindings(node)
    if len(bindings) != 1 or bindings[0].kind != "assign" or bindings[0].element:
        return None
    if bindings[0].owner is not facts.names.function(node):
        return None
    return bindings[0].value


def _is_nonlinear(facts: Facts, call: ast.Call) -> bool:
    origin = facts.names.single_origin(call.func)
    if not isinstance(origin, External) or not call.args or isinstance(call.args[0], ast.Starred):
        return False
    return origin.qualname in _NONLINEARITIES


def _product(facts: Facts, node: ast.expr, depth: int = 0) -> ast.expr | None:
    """The matmul that an expression is, up to what is added to it and casts."""
    found = _local(facts, node)
    if found is None or depth > _MAX_DEPTH:
        return None
    match found:
        case ast.BinOp(op=ast.MatMult()):
            return found
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _product(facts, left, depth + 1) or _product(facts, right, depth + 1)
        case ast.Call(func=ast.Attribute(value=value, attr="astype" | "reshape")) if not isinstance(
            facts.names.single_origin(value), External
        ):
            return _product(facts, value, depth + 1)
        case ast.Call() if _is_product(facts, found):
            return found
    return None


def _is_product(facts: Facts, call: ast.Call) -> bool:
    match facts.names.single_origin(call.func):
        case External(qualname) if qualname in _PRODUCTS:
            operands = [a for a in call.args if not isinstance(a, ast.Starred)]
            return len(operands) >= (3 if qualname.endswith("einsum") else 2)
        case ast.Call(func=func):  # a layer: `nn.Dense(8)(x)`, or `self.up(x)`
            origin = facts.names.single_origin(func)
            return isinstance(origin, External) and origin.qualname in _LAYERS
    return False


def _is_exempt(facts: Facts, name: str | None) -> bool:
    """Whether some policy joins others, or leaves the name out."""
    elsewhere = facts.project.of_policies(policy_names) if facts.project is not None else ()
    return any(
        "save_from_both_policies" in policies.factories
        or any(
            given is not None and given[0] == name and given[1] in EXCLUDING
            for given in policies.given
        )
        for policies in (policy_names(facts), *elsewhere)
    )
