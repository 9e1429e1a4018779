"""Tell what makes what a function returns, and what the function does beside that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.resolve.names import FunctionNode
from jaxresid.linter.text.trees import children

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

# Methods and functions that turn a stage's output into a scalar at no cost worth keeping.
_REDUCTIONS = frozenset({"mean", "sum", "squeeze", "item", "astype", "nanmean", "asarray"})
# What makes constants, indices and other shapes, by name and as methods.
_SET_UP = frozenset(
    """
    len int float bool range tuple list min max isinstance
    jax.numpy.arange jax.numpy.linspace jax.numpy.zeros jax.numpy.ones jax.numpy.full jax.numpy.eye
    jax.numpy.zeros_like jax.numpy.ones_like jax.numpy.full_like jax.numpy.empty jax.numpy.asarray
    jax.numpy.array jax.numpy.float32 jax.numpy.int32 jax.numpy.bfloat16 jax.numpy.shape
    jax.numpy.reshape jax.numpy.transpose jax.numpy.swapaxes jax.numpy.moveaxis
    jax.numpy.expand_dims jax.numpy.squeeze jax.numpy.flip jax.numpy.broadcast_to
    jax.numpy.concatenate jax.numpy.stack jax.numpy.split
    jax.random.split jax.random.key jax.random.PRNGKey jax.random.fold_in
    jax.tree.leaves jax.tree_util.tree_leaves
    """.split()
)
# What makes one array of the elements of a list.
_JOINING = frozenset({"stack", "array", "asarray", "concatenate", "hstack", "vstack"})
_RESHAPING = frozenset("reshape transpose swapaxes squeeze ravel flatten astype items".split())
_MAX_NAMES = 5
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def statements(function: FunctionNode) -> list[ast.stmt]:
    """Return a function's own statements without its docstring; a lambda's is one return."""
    if isinstance(function, ast.Lambda):
        return [ast.copy_location(ast.Return(function.body), function.body)]
    body = function.body
    if (
        body
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    ):
        body = body[1:]
    return body


def without_reductions(node: ast.expr) -> ast.expr:
    """Return an expression without the reductions around it: `jnp.mean(f(x))` -> `f(x)`.

    What reduces each element of a list is a reduction of it: `sum(jnp.mean(y) for y in f(x))`.
    """
    while True:
        match node:
            case ast.Call(args=[ast.ListComp() | ast.GeneratorExp() as each]) if (
                reduced := _reduced_list(node.func, each)
            ) is not None:
                node = reduced
            case ast.Call(func=ast.Attribute(attr=attr, value=inner), args=args) if (
                attr in _REDUCTIONS
            ):
                node = args[0] if args and isinstance(inner, ast.Name) else inner
            case ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
                node = inner
            case ast.BinOp(left=inner, right=ast.Constant()):
                node = inner
            case ast.BinOp(left=ast.Constant(), right=inner):
                node = inner
            case _:
                return node


def _reduced_list(func: ast.expr, each: ast.ListComp | ast.GeneratorExp) -> ast.expr | None:
    """Return the list whose every element is reduced and joined, None where more is done."""
    match func:
        case ast.Name(id="sum") | ast.Attribute(attr="sum"):
            pass
        case ast.Attribute(attr=attr) if attr in _JOINING:
            pass
        case _:
            return None
    match each.generators:
        case [ast.comprehension(target=ast.Name(id=name), iter=made, ifs=[])]:
            element = without_reductions(each.elt)
            if isinstance(element, ast.Name) and element.id == name:
                return made
    return None


def returned_expression(facts: Facts, function: FunctionNode) -> ast.expr | None:
    """Return the expression that makes what a function returns.

    Reductions, one local name and arithmetic with what the function is given are looked through, as
    in `jnp.mean((prediction - y) ** 2)`. None is returned where the function returns at several
    places.
    """
    returns = [n for n in own_nodes(function) if isinstance(n, ast.Return)]
    if isinstance(function, ast.Lambda):
        value: ast.expr | None = function.body
    elif len(returns) == 1 and function.body and returns[0] is function.body[-1]:
        value = returns[0].value
    else:
        return None
    if isinstance(value, ast.Tuple) and value.elts:
        value = value.elts[0]  # `return loss, aux`
    if value is None:
        return None
    value = _without_arithmetic(facts, function, value)
    if isinstance(value, ast.Name):
        bindings = facts.names.bindings(value)
        if len(bindings) == 1 and bindings[0].kind in {"assign", "other"}:
            node = bindings[0].node
            if isinstance(node, ast.Assign):  # also `loss, aux = f(x)`
                return without_reductions(node.value)
    return value


def returns(facts: Facts, function: FunctionNode, call: ast.expr) -> bool:
    """Return whether a call makes what a function returns, on every path that makes the call.

    Looked through is what `returned_expression` looks through, and more local names. Other paths
    may return something else: `if remat: y = jax.checkpoint(f)(x)`, and `y = f(x)` in the `else`.
    """
    if isinstance(function, ast.Lambda):
        values: list[ast.expr | None] = [function.body]
    else:
        values = [n.value for n in own_nodes(function) if isinstance(n, ast.Return)]
    return any(value is not None and _makes(facts, function, call, value, 0) for value in values)


def _makes(
    facts: Facts, function: FunctionNode, call: ast.expr, value: ast.expr, depth: int
) -> bool:
    if isinstance(value, ast.Tuple) and value.elts:
        value = value.elts[0]
    value = _without_arithmetic(facts, function, value)
    if value is call or depth > _MAX_NAMES:
        return value is call
    if isinstance(value, ast.IfExp):
        arms = (value.body, value.orelse)
        return any(_makes(facts, function, call, arm, depth + 1) for arm in arms)
    if not isinstance(value, ast.Name):
        return False
    bindings = facts.names.bindings(value)
    return any(
        b.kind in {"assign", "other"}
        and isinstance(b.node, ast.Assign)
        and _makes(facts, function, call, b.node.value, depth + 1)
        and not any(_may_follow(facts, b.node, o.node) for o in bindings if o is not b)
        for b in bindings
    )


def _may_follow(facts: Facts, node: ast.AST, other: ast.AST) -> bool:
    """Return whether a statement may run after another one in the same run of their function."""
    around: dict[ast.AST, ast.AST] = {}
    child = node
    for parent in facts.names.ancestors(node):
        if isinstance(parent, (ast.For, ast.While, ast.AsyncFor)):
            return True
        around[parent] = child
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            break
        child = parent
    if facts.names.order[other] < facts.names.order[node]:
        return False
    child = other
    for parent in facts.names.ancestors(other):
        if isinstance(parent, ast.If) and parent in around:
            return (child in parent.body) == (around[parent] in parent.body)
        if parent in around:
            return True
        child = parent
    return True


def _without_arithmetic(facts: Facts, function: FunctionNode, node: ast.expr) -> ast.expr:
    """Return an expression without reductions, and without arithmetic with given values."""
    node = without_reductions(node)
    while isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        given = [_is_given(facts, function, side) for side in (node.left, node.right)]
        if given[0] == given[1]:
            break
        node = without_reductions(node.right if given[0] else node.left)
    return node


def _is_given(facts: Facts, function: FunctionNode, node: ast.expr) -> bool:
    """Return whether a value comes into a function from outside, and is not computed in it."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if not isinstance(node, ast.Name):
        return False
    bindings = facts.names.bindings(node)
    return bool(bindings) and all(
        b.kind == "param" or facts.names.function(b.node) is not function for b in bindings
    )


def own_nodes(function: FunctionNode) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions and classes inside it."""
    body = function.body
    todo: list[ast.AST] = [body] if isinstance(body, ast.expr) else list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            todo += children(node)


def is_only(facts: Facts, function: FunctionNode, call: ast.expr) -> bool:
    """Return whether a function does nothing but one call (and hand its result on).

    What only sets up the call may stand before it: constants, unpacking, indices, other shapes.
    """
    return returns(facts, function, call) and _all_set_up(
        facts, function, statements(function), call
    )


def _all_set_up(
    facts: Facts, function: FunctionNode, block: list[ast.stmt], call: ast.expr
) -> bool:
    """Return whether all statements only set up a call, hand its result on, or stand in its place.

    In its place stands another arm of an `if`, whatever it does.
    """
    for statement in block:
        match statement:
            case ast.Return() | ast.Assert() | ast.Pass():
                pass
            case ast.FunctionDef() | ast.Import() | ast.ImportFrom():
                pass
            case ast.Assign(value=value):
                if not sets_up(facts, value) and not _makes(facts, function, call, value, 0):
                    return False
            case ast.If(body=body, orelse=orelse):
                arms = [arm for arm in (body, orelse) if _contains(facts, arm, call)]
                if not all(
                    _all_set_up(facts, function, arm, call) for arm in arms or (body, orelse)
                ):
                    return False
            case _:
                return False
    return True


def _contains(facts: Facts, block: list[ast.stmt], node: ast.AST) -> bool:
    return any(parent in block for parent in facts.names.ancestors(node))


def sets_up(facts: Facts, node: ast.expr) -> bool:
    """Return whether an expression computes nothing whose residuals are worth a thought."""
    for inner in ast.walk(node):
        match inner:
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in _RESHAPING:
                pass
            case ast.Call(func=func):
                names = facts.names.qualnames(func)
                if isinstance(func, ast.Name) and not facts.names.bindings(func):
                    names = (func.id,)
                if not names or not _SET_UP.issuperset(names):
                    return False
            case ast.BinOp(op=ast.MatMult() | ast.Pow()):
                return False
            case ast.Lambda() | ast.Await() | ast.Yield() | ast.YieldFrom() | ast.NamedExpr():
                return False
    return True
