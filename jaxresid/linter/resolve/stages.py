"""Tell whether a checkpoint is at the top of what is differentiated, and what its body does.

Shared by the placement rules (JXR1).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.resolve.names import External, FunctionNode
from jaxresid.violations import Related

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Loop, Site, Use

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
_RESHAPING = frozenset("reshape transpose swapaxes squeeze ravel flatten astype items".split())
# What a function goes through before a call of it that is a call of all of it.
_HANDING_ON = frozenset({"jit", "vmap", "partial", "instance"})
_MAX_CHAIN = 5
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_KEEPS_CLOSURE = ("vjp", "linearize")


def outermost(facts: Facts, derivative: ast.AST) -> bool:
    """Return whether nothing around a derivative could give a checkpoint under it a purpose.

    What could is another derivative, a staged loop or map, another checkpoint or a custom rule, or
    a closure over the derivative's residuals that lives on somewhere else. Only visible code is
    considered.
    """
    places = [derivative]
    parent = facts.names.parents.get(derivative)
    if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and isinstance(
        derivative, ast.expr
    ):
        uses = facts.uses_above(parent, derivative)  # as a decorator
    else:
        uses = facts.uses(derivative)
    for use in uses:
        if use.kind in {"derivative", "checkpoint", "rule"}:
            return False
        if use.kind == "loop" and use.api is not None and use.api.kind != "branch":
            return False
        if use.kind == "call":
            places.append(use.node)
    for place in places:
        context = facts.context(place)
        if context.reverse or context.loop or context.checkpoint or context.rule:
            return False
        if context.forward or isinstance(facts.names.parents.get(place), ast.UnaryOp):
            return False  # a negated gradient is a force, and forces are trained on
    return not _closure_escapes(facts, derivative)


def _closure_escapes(facts: Facts, derivative: ast.AST) -> bool:
    """Return whether the function that `jax.vjp` made leaves the function that called it."""
    if not isinstance(derivative, ast.Call):
        return False
    role = facts.role(derivative.func, "derivative")
    if role is None or not role.qualname.endswith(_KEEPS_CLOSURE):
        return False
    statement = facts.names.statement(derivative)
    if isinstance(statement, ast.Return):
        return True
    bound = {
        n.id
        for n in ast.walk(statement)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    function = facts.names.function(derivative)
    if function is None or isinstance(function, ast.Lambda):
        return function is not None
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            for name in ast.walk(node.value):
                parent = facts.names.parents.get(name)
                called = isinstance(parent, ast.Call) and parent.func is name
                if (
                    isinstance(name, ast.Name)
                    and name.id in bound
                    and not called
                    # The first of the two is the value, the other the closure.
                    and not _is_first_target(statement, name.id)
                ):
                    return True
    return False


def _is_first_target(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=first), *_])]):
            return first == name
    return False


def top_derivatives(facts: Facts, uses: tuple[Use, ...]) -> list[Use] | None:
    """Return the reverse-mode derivatives among a function's uses.

    None is returned where another use shows that the function is a part of something larger.
    """
    found = []
    for use in uses:
        match use.kind:
            case "derivative" if use.mode == "reverse":
                if "custom" in use.through or not outermost(facts, use.node):
                    return None
                found.append(use)
            case "call":
                context = facts.context(use.node)
                if context.reverse or context.loop or context.rule or context.checkpoint:
                    return None
            case "loop" | "checkpoint" | "rule":
                return None
    return found


def differentiating(
    facts: Facts, function: FunctionNode, *, whole: bool, depth: int = 0
) -> Use | None:
    """Return the derivative that is taken of a function, or of what only hands its result on.

    None is returned where the function is, or may be, a part of something larger.

    Args:
      facts: the facts of the module.
      function: the function.
      whole: whether every function on the way must do nothing else; if not, it may do more before.
      depth: how many functions were followed already.
    """
    uses = facts.uses(function)
    found = top_derivatives(facts, uses)
    if found:
        return found[0]
    if len(uses) != 1 or uses[0].kind != "call" or depth > _MAX_CHAIN:
        return None
    call, outer = uses[0].node, facts.names.function(uses[0].node)
    if not isinstance(call, ast.Call) or outer is None or facts.remote_uses(function):
        return None
    if not _HANDING_ON.issuperset(uses[0].through):
        return None
    if whole and not is_only(facts, outer, call):
        return None
    if returned_expression(facts, outer) is not call:
        return None
    return differentiating(facts, outer, whole=whole, depth=depth + 1)


def derivative_name(facts: Facts, use: Use) -> str:
    """Return how the derivative is written: `jax.value_and_grad`."""
    node = use.node
    while isinstance(node, ast.Call) and facts.is_partial(node) and node.args:
        node = node.args[0]
    if isinstance(node, ast.Call):
        node = node.func
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else "the gradient"


def related_place(facts: Facts, node: ast.AST, message: str) -> tuple[Related, ...]:
    """Return a place of this module as a related place, none where the node has no position."""
    if not isinstance(node, (ast.expr, ast.stmt)):
        return ()
    return (Related(message, facts.source.path, facts.source.span(node)),)


def site_text(facts: Facts, site: Site) -> str:
    """Return a site as the user would name it, with the backticks.

    For example: `jax.checkpoint(loss)`, or `@jax.checkpoint` on `loss`.
    """
    callee = ast.unparse(_callee(site.node))
    if site.definition is not None:
        return f"`@{callee}` on `{site.definition.name}`"
    what = "..."
    match site.target:
        case ast.Name() | ast.Attribute():
            what = ast.unparse(site.target)
        case ast.Lambda():
            what = "lambda ...: ..."
        case ast.Call(func=func):
            what = f"{ast.unparse(func)}(...)"
    return f"`{callee}({what})`"


def _callee(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call):
        last = ast.unparse(node.func).rpartition(".")[2]
        node = node.args[0] if last == "partial" and node.args else node.func
    return node


# -- bodies --------------------------------------------------------------------------------------


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
    """Return an expression without the reductions around it: `jnp.mean(f(x))` -> `f(x)`."""
    while True:
        match node:
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
            todo.extend(ast.iter_child_nodes(node))


def is_only(facts: Facts, function: FunctionNode, call: ast.expr) -> bool:
    """Return whether a function does nothing but one call (and hand its result on).

    What only sets up the call may stand before it: constants, unpacking, indices, other shapes.
    """
    if returned_expression(facts, function) is not call:
        return False
    return all(
        isinstance(s, (ast.Return, ast.Assert, ast.Pass))
        or (isinstance(s, ast.Assign) and without_reductions(s.value) is call)
        or isinstance(s, (ast.FunctionDef, ast.Import, ast.ImportFrom))
        or (isinstance(s, ast.Assign) and sets_up(facts, s.value))
        for s in statements(function)
    )


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


def whole_loops(facts: Facts, site: Site) -> tuple[Loop, ...]:
    """Return the loop that is all that a site checkpoints, none where there is more.

    There are two where the function returns either of two loops.

    For example: `checkpoint(lambda c: scan(body, c, xs))`, `nn.remat(nn.scan(Block))`.
    """
    by_node = {loop.node: loop for loop in facts.loops}
    target = facts.target(site)
    if isinstance(target, (ast.FunctionDef, ast.Lambda)):
        made = returned_expression(facts, target)
        if made is None or not is_only(facts, target, made):
            return ()
        parts = (made.body, made.orelse) if isinstance(made, ast.IfExp) else (made,)
        found = [_loop_called(by_node, without_reductions(part)) for part in parts]
        known = tuple(loop for loop in found if loop is not None)
        return known if len(known) == len(found) else ()
    origins = facts.targets(site)
    if len(origins) == 1 and isinstance(origins[0], ast.Call):
        loop = by_node.get(origins[0])
        if loop is not None and loop.api.curried and loop.api.kind == "loop":
            return (loop,)
    return ()


def _loop_called(by_node: dict[ast.expr, Loop], made: ast.expr) -> Loop | None:
    """Return the loop that a call runs many times, None where it is no such call."""
    loop = by_node.get(made)
    if loop is None and isinstance(made, ast.Call) and isinstance(made.func, ast.Call):
        loop = by_node.get(made.func)  # curried: `nn.scan(f)(xs)`
    return loop if loop is not None and loop.api.kind in {"loop", "map"} else None


def is_checkpointed(facts: Facts, body: ast.expr) -> bool | None:
    """Return whether a loop's body is or contains a checkpoint, None where it is not visible."""
    for origin in facts.names.origins(body):
        if origin is None:
            return None
        inner = facts.inside(origin)
        if inner is None or isinstance(inner, External):
            return None
        if facts.site_of(inner) is not None:
            return True
        if isinstance(inner, ast.Call):
            return None
        if any(s.node is n for s in facts.sites for n in ast.walk(inner)):
            return True
        if contains_unknown_remat(inner):
            return None
    return False


def contains_unknown_remat(node: ast.AST) -> bool:
    """Return whether code mentions checkpointing in a way that is not resolved.

    Examples are a helper's name or a configuration's flag.
    """
    for inner in ast.walk(node):
        word = ""
        match inner:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.keyword(arg=str(word)):
                pass
        if "remat" in word.lower() or "checkpoint" in word.lower():
            return True
    return False
