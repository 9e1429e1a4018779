from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.names import External, FunctionNode
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

# A custom_vjp of another library, or a callable that is not visible, might name values.
_KNOWN = frozenset({"jax", "numpy", "functools", "math", "typing", "operator"})
_BUILTINS = frozenset(
    "abs bool dict enumerate float getattr int isinstance len list max min print range reversed set "
    "sorted str sum tuple type zip slice round any all divmod".split()
)
_ARRAY_METHODS = frozenset(
    """
    astype reshape transpose swapaxes sum mean max min std var prod dot ravel flatten squeeze
    argmax argmin clip conj copy cumsum round set get add multiply divide power append items keys
    values all any repeat take view
    """.split()
)
_RULES = frozenset({"jax.custom_vjp", "jax.custom_derivatives.custom_vjp"})


class NameOutsideCustomVjpForward(Rule):
    """A name is given in a custom_vjp function, but not in its forward rule.

    ## What it does
    Finds `checkpoint_name` in a `jax.custom_vjp` function whose forward rule, with the functions
    of the module that it calls, gives none of these names, or reaches them only by calling the
    `custom_vjp` function itself. `jaxresid check` and reports say it of a traced program, in
    libraries too, with FLOPs, kept bytes and peak of the program whose rule gives the names, where
    that spares 3 % of the FLOPs.

    ## Why is this bad?
    Under differentiation the forward rule runs instead of the function. A policy that saves the
    name finds nothing to save.

    ## Use instead
    Give the name in the forward rule, to the value that it returns as a residual. Let the rule
    call the plain implementation rather than the `custom_vjp` function. (With `jax_remat3` names
    in forward rules are ignored too, unless `jax_custom_vjp3` is on.)

    ## When is this fine?
    If the function is never differentiated; then the name has no effect anyway.
    """

    code = "JXR308"
    name = "name-outside-custom-vjp-forward"
    severity = "warning"
    why = "Under differentiation the forward rule replaces the function and the names in it."
    help = "name the residual in the forward rule"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            @jax.custom_vjp
            def act(x, w):
                y = checkpoint_name(x @ w, "a")  # !
                return jnp.sin(y)


            def act_fwd(x, w):
                y = x @ w
                return jnp.sin(y), (y, x, w)


            def act_bwd(residuals, g):
                y, x, w = residuals
                d = g * jnp.cos(y)
                return d @ w.T, x.T @ d


            act.defvjp(act_fwd, act_bwd)
            """
        ),
    )
    good = (
        Example(
            """
            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            @jax.custom_vjp
            def act(x, w):
                return jnp.sin(checkpoint_name(x @ w, "a"))


            def act_fwd(x, w):
                y = checkpoint_name(x @ w, "a")
                return jnp.sin(y), (y, x, w)


            def act_bwd(residuals, g):
                y, x, w = residuals
                d = g * jnp.cos(y)
                return d @ w.T, x.T @ d


            act.defvjp(act_fwd, act_bwd)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        if not facts.named:
            return
        for call in facts.names.calls:
            func = call.func
            if not isinstance(func, ast.Attribute) or func.attr != "defvjp":
                continue
            primal = _primal(facts, func.value)
            forward = _function(facts, _forward(call))
            if primal is None or forward is None or _is_shared(facts, func.value, primal):
                continue
            yield from self._compare(facts, func.value, primal, forward)

    def _compare(
        self, facts: Facts, custom: ast.expr, primal: FunctionNode, forward: FunctionNode
    ) -> Iterator[Violation]:
        inside = [n for n in facts.named if primal in facts.names.functions_around(n.node)]
        if not inside or any(n.name is None for n in inside):
            return
        reached = _reach(facts, forward, primal)
        if reached.opaque or reached.names & {n.name for n in inside}:
            return
        what = ast.unparse(custom)
        rule = getattr(forward, "name", "")
        it = f"the forward rule `{rule}`" if rule else "the forward rule"
        how = f"calls `{what}` itself" if reached.calls_itself else "does not have it"
        for named in inside:
            yield self.report(
                facts,
                named.node,
                f"`{named.name}` is named only in `{what}`: {it}, which runs instead of it under "
                f"differentiation, {how}",
                related=stages.related_place(facts, forward, "the forward rule"),
            )


@dataclass(slots=True)
class _Reached:
    """What a forward rule runs, as far as the module shows.

    Attributes:
      names: that it gives to values.
      calls_itself: it calls the function whose rule it is.
      opaque: it runs something that is not visible.
    """

    names: set[str] = field(default_factory=set)
    calls_itself: bool = False
    opaque: bool = False


def _forward(call: ast.Call) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == "fwd":
            return keyword.value
    return call.args[0] if call.args else None


def _function(facts: Facts, node: ast.expr | None) -> FunctionNode | None:
    origin = facts.names.single_origin(node)
    return origin if isinstance(origin, (ast.FunctionDef, ast.Lambda)) else None


def _primal(facts: Facts, node: ast.expr) -> FunctionNode | None:
    """The function that a custom_vjp was made of."""
    match facts.names.single_origin(node):
        case ast.FunctionDef() as function if _is_custom_vjp(facts, function):
            return function
        case ast.Call() as call:
            role = facts.role(call.func, "custom")
            if role is None or role.qualname not in _RULES or not call.args:
                return None
            return _function(facts, call.args[0])
    return None


def _is_shared(facts: Facts, custom: ast.expr, primal: FunctionNode) -> bool:
    """Whether more than the custom_vjp made of it refers to a function."""
    if not isinstance(primal, ast.FunctionDef) or _is_custom_vjp(facts, primal):
        return False
    made = facts.names.single_origin(custom)
    return any(
        facts.names.parents.get(load) is not made and facts.names.single_origin(load) is primal
        for load in facts.names.loads.get(primal.name, ())
    )


def _is_custom_vjp(facts: Facts, function: ast.FunctionDef) -> bool:
    decorators = function.decorator_list
    if not decorators:
        return False
    role = facts.role(decorators[0], "custom")
    return role is not None and role.qualname in _RULES


def _reach(facts: Facts, forward: FunctionNode, primal: FunctionNode) -> _Reached:
    """What a forward rule runs. The functions that it mentions count as run."""
    found = _Reached()
    calls = {named.node: named for named in facts.named}
    todo: list[FunctionNode] = [forward]
    seen: set[ast.AST] = set()
    while todo:
        function = todo.pop()
        if function in seen:
            continue
        seen.add(function)
        body = function.body if isinstance(function.body, list) else [function.body]
        for node in (inner for part in body for inner in ast.walk(part)):
            if isinstance(node, ast.Call):
                if node in calls:
                    name = calls[node].name
                    found.opaque |= name is None
                    found.names.add(name or "")
                else:
                    found.opaque |= _is_opaque(facts, node)
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                mentioned = _mentioned(facts, node)
                if mentioned is primal and _is_itself(facts, node, primal):
                    found.calls_itself = True
                elif mentioned is not None:
                    todo.append(mentioned)
    return found


def _mentioned(facts: Facts, node: ast.Name | ast.Attribute) -> FunctionNode | None:
    """The function of this module that a name is, through a custom_vjp made of it."""
    function = _function(facts, node)
    return function if function is not None else _primal(facts, node)


def _is_itself(facts: Facts, node: ast.expr, primal: FunctionNode) -> bool:
    """Whether a name is the custom_vjp function rather than the implementation in it."""
    origin = facts.names.single_origin(node)
    return isinstance(origin, ast.Call) or (
        isinstance(origin, ast.FunctionDef) and _is_custom_vjp(facts, primal)  # type: ignore[arg-type]
    )


def _is_opaque(facts: Facts, call: ast.Call) -> bool:
    """Whether a call runs code that is not visible and might name values."""
    func = call.func
    match facts.names.single_origin(func):
        case External(qualname):
            if "." not in qualname:
                return qualname not in _BUILTINS
            return qualname.partition(".")[0] not in _KNOWN
        case ast.FunctionDef() | ast.Lambda():
            return False
        case ast.Call():
            return _primal(facts, func) is None
    if isinstance(func, ast.Attribute):
        return func.attr not in _ARRAY_METHODS
    if isinstance(func, ast.Name) and not facts.names.bindings(func):
        return func.id not in _BUILTINS
    return True
