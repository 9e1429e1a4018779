from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from jaxresid.linter.fixes.unwrapping import remove_checkpoint
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.names import External, FunctionNode
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

# One primitive each, whose derivative needs one array of its input's size at most: its input or its
# output. Without a checkpoint that one is kept, with it the input is: the same bytes. (Before 0.11
# tanh kept two.) relu, exp2, log2 and log10 are not among them: eagerly they keep a second one.
_ELEMENTWISE = frozenset(
    """
    sin cos tan sinh cosh arcsin arccos arctan exp expm1 log log1p sqrt rsqrt cbrt
    square reciprocal abs absolute fabs negative positive sign floor ceil round
    """.split()
)
# Linear in each argument: their derivatives keep their inputs, or nothing.
_LINEAR = frozenset(
    """
    dot matmul tensordot vdot inner outer einsum sum mean transpose swapaxes moveaxis reshape ravel
    squeeze expand_dims broadcast_to concatenate stack hstack vstack tile repeat roll flip pad real
    imag conj add subtract dot_general
    """.split()
)
_MAX_NODES = 100
_MODULES = ("jax.numpy.", "jax.lax.", "jax.nn.", "flax.linen.", "flax.nnx.")
_LINEAR_LAYERS = frozenset(
    """
    flax.linen.Dense flax.linen.DenseGeneral flax.linen.Embed flax.linen.Conv flax.linen.Einsum
    flax.nnx.Linear flax.nnx.LinearGeneral flax.nnx.Embed flax.nnx.Conv flax.nnx.Einsum
    haiku.Linear haiku.Embed haiku.Conv2D equinox.nn.Linear equinox.nn.Embedding equinox.nn.Conv2d
    """.split()
)


class TrivialCheckpoint(Rule):
    """A checkpointed function has nothing to drop: it is one cheap operation, or linear.

    ## What it does
    Finds a checkpoint of a single elementwise operation (`jnp.sin`), of a linear expression
    (`lambda w, x: x @ w`), or of a lone linear layer (`nn.remat(nn.Dense)`).

    ## Why is this bad?
    A linear operation keeps its inputs for the backward pass and a simple elementwise one keeps one
    array of its input's size. A checkpoint keeps the inputs as well: the same bytes, computed
    twice.

    ## Use instead
    Checkpoint a whole block, so that the values computed inside it can be dropped.

    ## When is this fine?
    Around a nonlinearity of several operations (`gelu`, `softmax`), whose intermediate values it
    does drop; the rule knows those and is silent. Where the barrier itself is wanted.

    ## Is the fix safe?
    No: values stay the same, but the checkpoint is also a barrier to the compiler.
    """

    code = "JXR107"
    name = "trivial-checkpoint"
    severity = "warning"
    lenient_in_tests = True
    why = "Its backward pass needs its inputs (or one array as large) with or without a checkpoint."
    help = "checkpoint a whole block instead"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jax.checkpoint(jnp.sin)(x @ w)  # !
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(x @ w)
            """,
        ),
        Example(
            """
            import jax

            project = jax.checkpoint(lambda w, x: x @ w)  # !
            """,
            fixed="""
            import jax

            project = (lambda w, x: x @ w)
            """,
        ),
        Example(
            '''
            from jax import remat
            import jax.numpy as jnp


            @remat  # !
            def project(w, b, x):
                """Affine."""
                return jnp.einsum("bi,ij->bj", x, w) + b
            ''',
            fixed='''
            from jax import remat
            import jax.numpy as jnp


            def project(w, b, x):
                """Affine."""
                return jnp.einsum("bi,ij->bj", x, w) + b
            ''',
        ),
        Example(
            """
            from flax import linen as nn


            class Net(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.remat(nn.Dense)(8, name='out')(x)  # !
            """,
            fixed="""
            from flax import linen as nn


            class Net(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(8, name='out')(x)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax
            import jax.numpy as jnp

            layer = jax.checkpoint(lambda w, x: jnp.sin(x @ w))
            """
        ),
        Example("""
            import jax

            activation = jax.checkpoint(jax.nn.gelu)
            """),
        Example("""
            import jax

            activation = jax.checkpoint(jax.nn.relu)
            """),
        Example("""
            import jax

            activation = jax.checkpoint(jax.nn.softmax)
            """),
        Example("""
            import jax


            def wrap(activation):
                return jax.checkpoint(activation)
            """),
        Example("""
            import jax

            triple = jax.checkpoint(lambda x, y, z: x * y * z)
            """),
        Example("""
            import jax

            quad = jax.checkpoint(lambda w, v, x: x @ w @ v)
            """),
        Example(
            """
            from flax import linen as nn


            def block(Block):
                return nn.remat(Block)
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            @jax.checkpoint
            def f(x):
                y = jnp.sin(x)
                return jnp.sin(y)
            """
        ),
        Example("""
            import jax


            @jax.checkpoint
            def f(x, table):
                return table[0](x)
            """),
        Example("""
            import jax


            @jax.checkpoint
            def identity(x):
                pass
            """),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            what = _trivial(facts, site)
            if what:
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} saves nothing: {what}",
                    fix=remove_checkpoint(facts, site),
                )


def _trivial(facts: Facts, site: Site) -> str:
    """Why there is nothing to drop; empty where there may be."""
    targets = facts.targets(site)
    if len(targets) != 1:
        return ""
    target = targets[0]
    if isinstance(target, External):
        if target.qualname in _LINEAR_LAYERS:
            return "a linear layer keeps its input anyway"
        return _operation(target.qualname)
    if isinstance(target, (ast.FunctionDef, ast.Lambda)):
        return _body(facts, target)
    return ""


def _operation(qualname: str) -> str:
    module = next((m for m in _MODULES if qualname.startswith(m)), None)
    name = qualname[len(module) :] if module else ""
    if name in _LINEAR:
        return "a linear operation keeps its inputs anyway"
    if name in _ELEMENTWISE:
        return "one elementwise operation keeps one array of its input's size anyway"
    return ""


def _body(facts: Facts, function: FunctionNode) -> str:
    own = stages.statements(function)
    if len(own) != 1 or not isinstance(own[0], ast.Return) or own[0].value is None:
        return ""
    value = own[0].value
    if next(islice(ast.walk(value), _MAX_NODES, None), None) is not None:
        return ""  # whatever it is, it is not trivial
    if isinstance(value, ast.Call) and _operation_of(facts, value).startswith("one "):
        return _operation_of(facts, value) if all(_is_leaf(a) for a in _inputs(value)) else ""
    bilinear = [n for n in ast.walk(value) if _is_product(facts, n)]
    if _is_leaf(value) or len(bilinear) > 1 or not _is_linear(facts, value):
        return ""
    return "a linear operation keeps its inputs anyway"


def _operation_of(facts: Facts, call: ast.Call) -> str:
    return next((w for q in facts.names.qualnames(call.func) if (w := _operation(q))), "")


def _inputs(call: ast.Call) -> list[ast.expr]:
    """The arguments that may be arrays."""
    return [a for a in call.args if not isinstance(a, ast.Constant)]


def _is_leaf(node: ast.expr) -> bool:
    match node:
        case ast.Name() | ast.Constant():
            return True
        case ast.Attribute(value=inner) | ast.Subscript(value=inner, slice=ast.Constant()):
            return _is_leaf(inner)
    return False


def _is_product(facts: Facts, node: ast.AST) -> bool:
    """Whether something multiplies arrays, whose second factor would have to be kept."""
    match node:
        case ast.BinOp(op=ast.MatMult()):
            return True
        case ast.Call(func=func):
            last = [q.rpartition(".")[2] for q in facts.names.qualnames(func)]
            return any(
                n in {"dot", "matmul", "tensordot", "vdot", "inner", "outer", "einsum"}
                or n == "dot_general"
                for n in last
            )
    return False


def _is_linear(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression is linear in arrays that it is given, products of two of them
    included.
    """
    match node:
        case ast.BinOp(op=ast.MatMult(), left=left, right=right):
            return _is_leaf(left) and _is_leaf(right)
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
            return _is_linear(facts, left) and _is_linear(facts, right)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _is_linear(facts, inner)
        case ast.Call():
            if not _operation_of(facts, node).startswith("a linear"):
                return False
            if _is_product(facts, node):
                return all(_is_leaf(a) for a in _inputs(node))
            return all(_is_linear(facts, a) for a in _inputs(node))
    return _is_leaf(node)
