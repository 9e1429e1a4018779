"""Tell whether a checkpoint is at the top of what is differentiated, and what its body does.

Shared by the placement rules (JXR1).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Related
from jaxresid.linter.resolve import results
from jaxresid.linter.resolve.names import External, FunctionNode
from jaxresid.linter.resolve.results import Part
from jaxresid.linter.text.trees import walk

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Loop, Site, Use

# What a function goes through before a call of it that is a call of all of it.
_HANDING_ON = frozenset({"jit", "vmap", "partial", "instance", "made"})
_MAX_CHAIN = 5
_MAX_CALLS = 4
_KEEPS_CLOSURE = ("vjp", "linearize")
# Words in the names of functions that make new parameters of gradients.
_OPTIMIZERS = frozenset("adam adamw sgd rmsprop adagrad lion muon optimizer opt".split())
# What has a value beside the derivative: the first of two results.
_WITH_VALUE = ("value_and_grad", *_KEEPS_CLOSURE)


def outermost(facts: Facts, derivative: ast.AST) -> bool:
    """Return whether nothing around a derivative could give a checkpoint under it a purpose.

    What could is another derivative, a staged loop or map, another checkpoint or a custom rule, or
    a closure over the derivative's residuals that lives on somewhere else. A loop of training steps
    is none of these: it keeps the parameters that an optimizer made of the gradient. Only visible
    code is considered.
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
        if context.reverse or context.checkpoint or context.rule:
            return False
        if context.loop and not _trains(facts, place):
            return False
        if context.forward or isinstance(facts.names.parents.get(place), ast.UnaryOp):
            return False  # a negated gradient is a force, and forces are trained on
    return not _closure_escapes(facts, derivative)


def _trains(facts: Facts, place: ast.AST, depth: int = 0) -> bool:
    """Return whether an optimizer gets the gradient that a call computes, as far as is certain.

    The gradient is followed through the statements of its function, and to the callers of one that
    returns it.
    """
    function = facts.names.function(place)
    if not isinstance(place, ast.Call) or function is None or depth > _MAX_CHAIN:
        return False
    statement, order = facts.names.statement(place), facts.names.order
    gradients = {t.id for t in _gradient_targets(facts, statement, place)}
    returned = False
    later = [n for n in results.own_nodes(function) if order.get(n, -1) >= order[statement]]
    for node in sorted(later, key=order.__getitem__):
        match node:
            case ast.Call() if any(_mentions(g, gradients, place) for g in _optimized(node)):
                return True
            case ast.Assign(targets=targets, value=value) if node is not statement:
                if _mentions(value, gradients, place):
                    gradients |= {t.id for target in targets for t in _stored(target)}
            case ast.Return(value=ast.expr() as value):
                returned |= _mentions(value, gradients, place)
    calls = [u for u in facts.uses(function) if u.kind != "returned"] if returned else []
    return bool(calls) and all(
        u.kind == "call" and _trains(facts, u.node, depth + 1) for u in calls
    )


def _gradient_targets(facts: Facts, statement: ast.stmt, place: ast.Call) -> list[ast.Name]:
    """Return the names that a statement gives the gradient of a call in it, without the value's."""
    if not isinstance(statement, ast.Assign):
        return []
    roles = [r for r in facts.roles(place.func) if r.kind == "derivative"]
    maker = facts.names.single_origin(place.func)
    if isinstance(maker, ast.Call):
        roles += [r for r in facts.roles(maker.func) if r.kind == "derivative"]
    valued = any(r.qualname.endswith(_WITH_VALUE) for r in roles)
    found = []
    for target in statement.targets:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        skipped = 1 if valued and len(parts) > 1 and statement.value is place else 0
        found += [name for part in parts[skipped:] for name in _stored(part)]
    return found


def _stored(target: ast.expr) -> Iterator[ast.Name]:
    """Yield the names that an assignment to a target binds or changes."""
    match target:
        case ast.Name():
            yield target
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for element in elements:
                yield from _stored(element)
        case ast.Starred(value=inner) | ast.Subscript(value=inner):
            yield from _stored(inner)


def _optimized(call: ast.Call) -> list[ast.expr]:
    """Return what a call hands an optimizer as gradients; nothing where it calls none.

    That are `tx.update(grads, state)` of optax and what has its interface (`dict.update` takes one
    argument by position), `state.apply_gradients(grads=grads)` of Flax, and functions that are
    named after an optimizer: `adam_step(params, moments, grads)`, `opt_update(i, grads, state)`.
    """
    match call:
        case ast.Call(func=ast.Attribute(attr="update"), args=[first, _, *_]):
            return [first]
        case ast.Call(func=ast.Attribute(attr="apply_gradients"), args=args, keywords=keywords):
            return [*args, *(k.value for k in keywords if k.arg == "grads")]
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if isinstance(name, str) and not _OPTIMIZERS.isdisjoint(name.lower().split("_")):
        return [*call.args, *(k.value for k in call.keywords)]
    return []


def _mentions(value: ast.AST, names: set[str], place: ast.AST) -> bool:
    """Return whether an expression contains a call, or reads one of some names."""
    return any(n is place or (isinstance(n, ast.Name) and n.id in names) for n in walk(value))


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
    facts: Facts,
    function: FunctionNode,
    *,
    whole: bool,
    parts: frozenset[Part] = results.WHOLE,
    depth: int = 0,
) -> Use | None:
    """Return the derivative that is taken of a function, or of what only hands its result on.

    None is returned where the function is, or may be, a part of something larger.

    Args:
      facts: the facts of the module.
      function: the function.
      whole: whether every function on the way must do nothing else; if not, it may do more before.
      parts: the parts of its result that are asked about.
      depth: how many functions were followed already.
    """
    uses = facts.uses(function)
    found = top_derivatives(facts, uses)
    if found:
        return found[0] if results.is_among((), parts) else None
    made = {"returned"} if any("made" in u.through for u in uses) else set()
    calls = [use for use in uses if use.kind not in made]
    if depth > _MAX_CHAIN or not 0 < len(calls) <= _MAX_CALLS:
        return None
    if any(use.kind != "call" for use in calls) or facts.remote_uses(function):
        return None
    derivative = None
    for use in calls:
        outer = facts.names.function(use.node)
        handed = _handed_on(facts, use, parts, whole=whole)
        above = (
            differentiating(facts, outer, whole=whole, parts=handed, depth=depth + 1)
            if outer is not None and handed
            else None
        )
        if above is None and (len(calls) == 1 or facts.context(use.node).reverse):
            return None
        derivative = derivative or above
    return derivative


def _handed_on(facts: Facts, use: Use, parts: frozenset[Part], *, whole: bool) -> frozenset[Part]:
    """Return the parts of a function's result that parts of a call in it are, none for another use.

    Where all is asked for, there are none either if the function does more than the call.
    """
    outer = facts.names.function(use.node)
    if not isinstance(use.node, ast.Call) or outer is None:
        return frozenset()
    if not _HANDING_ON.issuperset(use.through):
        return frozenset()
    if whole and not is_whole(facts, outer, use.node):
        return frozenset()
    return results.parts(facts, outer, use.node, parts)


def is_whole(facts: Facts, function: FunctionNode, call: ast.Call) -> bool:
    """Return whether a call is all that a function does, what it is given included."""
    given = (*call.args, *(k.value for k in call.keywords))
    return results.is_only(facts, function, call) and all(results.sets_up(facts, g) for g in given)


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
    callee = callee_text(site)
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


def callee_text(site: Site) -> str:
    """Return the checkpoint of a site as the user spells it: `nn.remat`."""
    return ast.unparse(_callee(site.node))


def _callee(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call):
        last = ast.unparse(node.func).rpartition(".")[2]
        node = node.args[0] if last == "partial" and node.args else node.func
    return node


def whole_loops(facts: Facts, site: Site) -> tuple[Loop, ...]:
    """Return the loop that is all that a site checkpoints, none where there is more.

    There are two where the function returns either of two loops.

    For example: `checkpoint(lambda c: scan(body, c, xs))`, `nn.remat(nn.scan(Block))`.
    """
    by_node = {loop.node: loop for loop in facts.loops}
    target = facts.target(site)
    if isinstance(target, (ast.FunctionDef, ast.Lambda)):
        made = results.returned_expression(facts, target)
        if made is None or not results.is_only(facts, target, made):
            return ()
        parts = (made.body, made.orelse) if isinstance(made, ast.IfExp) else (made,)
        found = [_loop_called(by_node, results.without_reductions(part)) for part in parts]
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
