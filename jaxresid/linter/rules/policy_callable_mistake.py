from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Fix, Related, Violation
from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.names import FunctionNode
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_EQUAL = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)
_IN = (ast.In, ast.NotIn)


class PolicyCallableMistake(Rule):
    """A custom policy raises, or never saves what it is meant to.

    ## What it does
    Looks at the functions and lambdas given as `policy=`: whether they accept what JAX calls them
    with, compare the primitive with a string, or return something other than a bool.

    ## Why is this bad?
    JAX calls `policy(prim, *avals, **params)`. The primitive is an object, which equals no string:
    the comparison is always false, and nothing is saved, silently. Without `**params`,
    or with a result that is not a bool, differentiation raises.

    ## Use instead
    `lambda prim, *avals, **params: prim.name == "dot_general"`, or one of JAX's own policies:
    writing callables is considered internal.

    ## When is this fine?
    Never; a function that may or may not be used as a policy is not reported.

    ## Is the fix safe?
    No: it compares `prim.name`, so values begin to be saved.
    """

    code = "JXR207"
    name = "policy-callable-mistake"
    severity = "error"
    why = "JAX calls policy(prim, *avals, **params) with a Primitive object and wants a bool."
    help = "take `prim, *avals, **params`, look at `prim.name`, and return True or False"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.cos(jnp.sin(x @ w)).sum()


            block = jax.checkpoint(
                layer,
                policy=lambda prim, *_, **__: prim == "dot_general",  # !
            )
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.cos(jnp.sin(x @ w)).sum()


            block = jax.checkpoint(
                layer,
                policy=lambda prim, *_, **__: prim.name == "dot_general",
            )
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def run(layer, w, x):
                policy = lambda prim, *_, **__: prim.name == "dot_general"
                return jax.checkpoint(layer, policy=policy)(w, x)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        reported: set[ast.AST] = set()
        for node in policies.policy_arguments(facts):
            for leaf in policies.leaves(node):
                function = facts.policy_of(leaf).function
                if function is None or _is_decorated(function):
                    continue
                found = [*self._calling(facts, leaf, function)]
                if function not in reported:
                    found += [*self._comparing(facts, function), *self._returning(facts, function)]
                reported.add(function)
                yield from found

    def _calling(self, facts: Facts, leaf: ast.expr, function: FunctionNode) -> Iterator[Violation]:
        args = function.args
        positional = len(args.posonlyargs) + len(args.args)
        if facts.names.class_of(function) is not None:
            positional -= 1
        no_params = args.kwarg is None and not args.kwonlyargs
        no_avals = args.vararg is None and positional == 1
        what = _called(facts, leaf)
        if no_params or no_avals:
            lacking = "`**params`" if no_params else "`*avals`"
            message = f"{what} is given as a policy but does not accept {lacking}"
            yield self.report(facts, leaf, message, related=_defined(facts, leaf, function))
        elif isinstance(function, ast.FunctionDef) and _never_returns(facts, function):
            message = f"{what} is given as a policy but returns nothing"
            yield self.report(facts, leaf, message, related=_defined(facts, leaf, function))

    def _comparing(self, facts: Facts, function: FunctionNode) -> Iterator[Violation]:
        prim = _first(facts, function)
        for node in ast.walk(function) if prim is not None else ():
            if not isinstance(node, ast.Compare) or len(node.ops) != 1:
                continue
            name = _compared(facts, node, function, prim)
            if name is not None:
                what = policies.source_text(facts, node)
                message = f"`{what}` compares a primitive with a string, which it never equals"
                if node.comparators[0] is name and isinstance(node.ops[0], _IN):
                    message = f"`{what}` looks for a string in a primitive, which raises"
                yield self.report(facts, node, message, fix=_by_name(facts, node, name))

    def _returning(self, facts: Facts, function: FunctionNode) -> Iterator[Violation]:
        for value, node in _results(facts, function):
            if isinstance(value, ast.Constant) and not isinstance(value.value, bool):
                what = "None" if value.value is None else policies.source_text(facts, value)
                yield self.report(
                    facts, node, f"a policy returns True or False, and this one returns `{what}`"
                )


def _is_decorated(function: FunctionNode) -> bool:
    return not isinstance(function, ast.Lambda) and bool(function.decorator_list)


def _called(facts: Facts, leaf: ast.expr) -> str:
    return (
        "the lambda" if isinstance(leaf, ast.Lambda) else f"`{policies.source_text(facts, leaf)}`"
    )


def _defined(facts: Facts, leaf: ast.expr, function: FunctionNode) -> tuple[Related, ...]:
    if leaf is function:
        return ()
    return stages.related_place(facts, function, "defined here")


def _first(facts: Facts, function: FunctionNode) -> str | None:
    """The name of the parameter that gets the primitive."""
    args = [*function.args.posonlyargs, *function.args.args]
    if facts.names.class_of(function) is not None:
        args = args[1:]
    return args[0].arg if args else None


def _compared(
    facts: Facts, node: ast.Compare, function: FunctionNode, prim: str | None
) -> ast.Name | None:
    """The primitive, where `node` compares it with a string or looks it up among strings."""

    def is_prim(side: ast.expr) -> bool:
        if not isinstance(side, ast.Name) or side.id != prim:
            return False
        bindings = facts.names.bindings(side)
        return [b.kind for b in bindings] == ["param"] and bindings[0].owner is function

    left, right = node.left, node.comparators[0]
    if isinstance(node.ops[0], _EQUAL):
        for one, other in ((left, right), (right, left)):
            if isinstance(one, ast.Name) and is_prim(one) and _is_string(facts, other):
                return one
    elif isinstance(node.ops[0], _IN):
        if isinstance(left, ast.Name) and is_prim(left) and _is_strings(facts, right):
            return left
        if isinstance(right, ast.Name) and is_prim(right) and _is_string(facts, left):
            return right
    return None


def _is_string(facts: Facts, node: ast.expr) -> bool:
    return isinstance(facts.names.constant(node), str)


def _is_strings(facts: Facts, node: ast.expr) -> bool:
    value = facts.names.constant(node)
    return isinstance(value, (list, tuple, set)) and all(isinstance(v, str) for v in value)


def _by_name(facts: Facts, node: ast.Compare, name: ast.Name) -> Fix | None:
    if isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        return None
    text = f"{name.id}.name"
    return Fix(f"Look at `{text}`", (edits.replace(facts.source, name, text),), "unsafe")


def _results(
    facts: Facts, function: FunctionNode
) -> Iterator[tuple[ast.expr, ast.expr | ast.stmt]]:
    """What a function gives, with what to point at."""
    if isinstance(function, ast.Lambda):
        yield from ((leaf, leaf) for leaf in _conditional(function.body))
        return
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and facts.names.function(node) is function:
            if node.value is None:
                yield ast.Constant(None), node
            else:
                yield from ((leaf, node) for leaf in _conditional(node.value))


def _conditional(node: ast.expr) -> Iterator[ast.expr]:
    """The branches of a conditional expression; `x and y` is a matter of truth, and left alone."""
    if isinstance(node, ast.IfExp):
        yield from _conditional(node.body)
        yield from _conditional(node.orelse)
    else:
        yield node


def _never_returns(facts: Facts, function: ast.FunctionDef) -> bool:
    """Whether the end of a function is always reached: no return, raise or yield in it, and
    something else than `...`.
    """
    leaving = (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Assert)
    inside = (n for n in ast.walk(function) if isinstance(n, leaving))
    return not any(facts.names.function(n) is function for n in inside) and not (
        isinstance(function.body[-1], ast.Expr)
        and isinstance(function.body[-1].value, ast.Constant)
    )
