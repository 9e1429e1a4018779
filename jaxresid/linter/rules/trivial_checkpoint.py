from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.fixes.unwrapping import remove_checkpoint
from jaxresid.linter.patterns import layers, nn_modules
from jaxresid.linter.resolve import results, stages
from jaxresid.linter.resolve.names import External, FunctionNode
from jaxresid.linter.rule import Example, Rule

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
    imag conj add subtract dot_general ragged_dot conv conv_general_dilated conv_transpose take
    """.split()
)
# The linear ones of two arrays.
_PRODUCTS = frozenset(
    """
    dot matmul tensordot vdot inner outer einsum dot_general ragged_dot conv conv_general_dilated
    conv_transpose
    """.split()
)
_RESHAPING = frozenset("astype reshape transpose swapaxes squeeze ravel flatten".split())
_VIEWS = frozenset({"T", "mT", "real", "imag"})
_MAX_NODES = 100
_MAX_CLASSES = 3
_MODULES = ("jax.numpy.", "jax.lax.", "jax.nn.", "flax.linen.", "flax.nnx.")


class TrivialCheckpoint(Rule):
    """A checkpointed function has nothing to drop: it is one cheap operation, or linear.

    ## What it does
    Finds a checkpoint of a single elementwise operation (`jnp.sin`), of a linear expression
    (`lambda w, x: x @ w`), of a lookup (`table[ids]`), or of one layer of Flax, Haiku, Equinox or
    Haliax that is linear or a pool (`nn.remat(nn.Dense)`, `nnx.remat(self.conv)`), also where a
    function, a method or a module does nothing but call it.

    ## Why is this bad?
    A linear operation keeps its inputs for the backward pass and a simple elementwise one keeps one
    array of its input's size. A checkpoint keeps the inputs as well: the same bytes, computed
    twice.

    ## Use instead
    Checkpoint a whole block, so that the values computed inside it can be dropped.

    ## When is this fine?
    Around what has intermediate values to drop, such as `gelu`, a normalization or two layers, and
    around a product of what is sliced, transposed or cast there, a copy that a loop would stack: the
    rule is silent there. Around a layer that computes in another type (`dtype=`, `param_dtype=`), a
    checkpoint drops the cast of the weights, and keeps the input as it is: the rule is silent too,
    wherever the layer is constructed. Where the barrier itself is wanted.

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
    )
    good = (
        Example(
            """
            import jax
            import jax.numpy as jnp

            layer = jax.checkpoint(lambda w, x: jnp.sin(x @ w))
            """
        ),
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
    if site.target is not None:
        names = layers.layer(facts, site.target)
        if names:
            return _of_layer(*names)
        cls = nn_modules.instance_class(facts, site.target)
        if isinstance(cls, ast.ClassDef):
            return _module(facts, cls)
    targets = facts.targets(site)
    if len(targets) != 1:
        return ""
    target = targets[0]
    if isinstance(target, External):
        if facts.is_class(site):
            trivial = layers.is_trivial_class(facts, site, target.qualname)
            return _of_layer(target.qualname.rpartition(".")[2]) if trivial else ""
        return _operation(target.qualname)
    if isinstance(target, ast.ClassDef) and facts.is_class(site):
        return _module(facts, target)
    if isinstance(target, (ast.FunctionDef, ast.Lambda)):
        return _body(facts, target, site)
    return ""


def _of_layer(*names: str) -> str:
    either = " or ".join(f"`{name}`" for name in names)
    return f"one {either} keeps its input, or less, anyway"


def _module(facts: Facts, cls: ast.ClassDef, depth: int = 0) -> str:
    """Why calling an instance of a module has nothing to drop; empty where it may have."""
    method = facts.names.method(cls, "__call__")
    if method is None or depth > _MAX_CLASSES or nn_modules.library(facts, cls) is None:
        return ""
    value = _only_value(method)
    if not isinstance(value, ast.Call) or not all(_is_leaf(a) for a in _inputs(value)):
        return ""
    names = layers.layer(facts, value.func)
    if names:
        return _of_layer(*names)
    inner = nn_modules.instance_class(facts, value.func)
    return _module(facts, inner, depth + 1) if isinstance(inner, ast.ClassDef) else ""


def _operation(qualname: str) -> str:
    module = next((m for m in _MODULES if qualname.startswith(m)), None)
    name = qualname[len(module) :] if module else ""
    if name in _LINEAR:
        return "a linear operation keeps its inputs anyway"
    if name in _ELEMENTWISE:
        return "one elementwise operation keeps one array of its input's size anyway"
    return ""


def _only_value(function: FunctionNode) -> ast.expr | None:
    """The one expression that a function computes and returns, None where it does more."""
    match results.statements(function):
        case [ast.Return(value=value)]:
            return value
        case [ast.Assign(targets=[ast.Name(id=one)], value=value), ast.Return(ast.Name(id=other))]:
            return value if one == other else None
    return None


def _body(facts: Facts, function: FunctionNode, site: Site) -> str:
    value = _only_value(function)
    if value is None or next(islice(ast.walk(value), _MAX_NODES, None), None) is not None:
        return ""  # whatever it is, it is not trivial
    if isinstance(value, ast.Subscript) and _is_lookup(value):
        return "a lookup keeps its indices alone anyway"
    if isinstance(value, ast.Call) and all(_is_leaf(a) for a in _inputs(value)):
        names = layers.layer(facts, value.func) or _given_layer(facts, function, value.func, site)
        if names:
            return _of_layer(*names)
    if isinstance(value, ast.Call) and _operation_of(facts, value).startswith("one "):
        return _operation_of(facts, value) if all(_is_leaf(a) for a in _inputs(value)) else ""
    bilinear = [n for n in ast.walk(value) if _is_product(facts, n)]
    if _is_leaf(value) or len(bilinear) > 1 or not _is_linear(facts, value):
        return ""
    return "a linear operation keeps its inputs anyway"


def _given_layer(
    facts: Facts, function: FunctionNode, func: ast.expr, site: Site
) -> tuple[str, ...]:
    """The layers that the calls of a site give for the parameter that its function calls.

    There are none unless every call gives one.
    """
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if not isinstance(func, ast.Name) or func.id not in names:
        return ()
    index = names.index(func.id)
    found: dict[str, None] = {}
    for use in facts.site_uses(site):
        call = use.node
        if use.kind != "call" or use.through or not isinstance(call, ast.Call):
            return ()
        if len(call.args) <= index or any(isinstance(a, ast.Starred) for a in call.args):
            return ()
        given = layers.layer(facts, call.args[index])
        if not given:
            return ()
        found |= dict.fromkeys(given)
    return tuple(found)


def _is_lookup(node: ast.Subscript) -> bool:
    """Whether a subscript takes the rows that another array names."""
    where = node.slice
    return _is_leaf(node.value) and isinstance(where, (ast.Name, ast.Attribute))


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
        case ast.Call(func=ast.Attribute(value=inner, attr=attr), args=args) if attr in _RESHAPING:
            return _is_leaf(inner) and all(_is_leaf(a) for a in args)
        case ast.Tuple(elts=elements):
            return all(isinstance(e, ast.Constant) for e in elements)
    return False


def _is_given(node: ast.expr) -> bool:
    """Return whether a factor is an array that the function gets, and not made of one.

    A product keeps a slice, a transpose or a cast beside the array that it is made of: a loop
    stacks them.
    """
    match node:
        case ast.Name() | ast.Constant():
            return True
        case ast.Attribute(value=inner, attr=attr):
            return attr not in _VIEWS and _is_given(inner)
        case ast.Subscript(value=inner, slice=ast.Constant(value=str())):
            return _is_given(inner)
        case ast.Tuple(elts=elements):
            return all(isinstance(e, ast.Constant) for e in elements)
    return False


def _is_product(facts: Facts, node: ast.AST) -> bool:
    """Whether something multiplies arrays, whose second factor would have to be kept."""
    match node:
        case ast.BinOp(op=ast.MatMult()):
            return True
        case ast.Call(func=func):
            last = [q.rpartition(".")[2] for q in facts.names.qualnames(func)]
            return not _PRODUCTS.isdisjoint(last)
    return False


def _is_linear(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression is linear in arrays that it is given, products of two of them
    included.
    """
    match node:
        case ast.BinOp(op=ast.MatMult(), left=left, right=right):
            return _is_given(left) and _is_given(right)
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
            return _is_linear(facts, left) and _is_linear(facts, right)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _is_linear(facts, inner)
        case ast.Call():
            if not _operation_of(facts, node).startswith("a linear"):
                return False
            if _is_product(facts, node):
                return all(_is_given(a) for a in _inputs(node))
            return all(_is_linear(facts, a) for a in _inputs(node))
    return _is_leaf(node)
