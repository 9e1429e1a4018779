from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Edit, Fix, Violation
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve import apis
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

# What a call gives, and what follows.
_RESULT = {
    "nothing_saveable": (
        "gives False",
        "JAX takes False for no policy and recomputes everything; with jax_remat3 it is a "
        "TypeError.",
    ),
    "everything_saveable": (
        "gives True",
        "JAX calls its policies, so differentiating raises TypeError: 'bool' is not callable.",
    ),
}
_RAISES = (
    "raises TypeError",
    "It needs the primitive that JAX calls it with, so this line raises where it is run.",
)


class CalledPolicy(Rule):
    """A policy is called instead of being passed.

    ## What it does
    Finds a call without arguments of a plain policy: `nothing_saveable()`, `dots_saveable()`.

    ## Why is this bad?
    The plain policies are not factories. `nothing_saveable()` is `False`, which JAX takes as no
    policy (and the implementation behind `jax_remat3` raises); `everything_saveable()` is `True`,
    which raises once it is differentiated; the others raise at once, as they need a primitive.

    ## Use instead
    The function itself: `policy=jax.checkpoint_policies.nothing_saveable`.

    ## When is this fine?
    With arguments, inside a policy of your own: `dots_saveable(prim, *args, **params)`.

    ## Is the fix safe?
    Yes: it removes the empty parentheses. `False` and `nothing_saveable` save the same, and the
    others cannot have worked.
    """

    code = "JXR202"
    name = "called-policy"
    severity = "error"
    why = "A plain policy is the function that jax.checkpoint calls, not one that makes it."
    help = "remove the empty parentheses"
    fixes = "safe"
    bad = (
        Example(
            """
            import jax


            def run(layer, w, x, policy=jax.checkpoint_policies.nothing_saveable()):  # !
                return jax.checkpoint(layer, policy=policy)(w, x)
            """,
            fixed="""
            import jax


            def run(layer, w, x, policy=jax.checkpoint_policies.nothing_saveable):
                return jax.checkpoint(layer, policy=policy)(w, x)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def run(layer, w, x, policy=jax.checkpoint_policies.nothing_saveable):
                return jax.checkpoint(layer, policy=policy)(w, x)
            """
        ),
        Example(
            """
            import jax

            cp = jax.checkpoint_policies


            def policy(prim, *args, **params):
                return cp.dots_saveable(prim, *args, **params) or prim.name == "exp"
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for call, _ in facts.policy_calls:
            name = policies.name_of(facts, call.func)
            if name not in apis.PLAIN_POLICIES or call.args or call.keywords:
                continue
            if name in _RESULT and _is_truth(facts, call):
                continue
            what = policies.source_text(facts, call)
            result, why = _RESULT.get(name, _RAISES)
            message = f"`{what}` calls the policy, which {result}, instead of passing it"
            yield self.report(facts, call, message, why=why, fix=_uncall(facts, call))


def _is_truth(facts: Facts, call: ast.Call) -> bool:
    """Whether the result is wanted for its truth: in a test, or from a policy of the user's."""
    parent = facts.names.parents.get(call)
    if isinstance(parent, (ast.Compare, ast.UnaryOp, ast.BoolOp, ast.Assert, ast.If, ast.While)):
        return True
    if isinstance(parent, ast.IfExp) and parent.test is call:
        return True
    function = facts.names.function(call)
    if function is None or (function.args.vararg is None and function.args.kwarg is None):
        return False
    return isinstance(parent, (ast.Return, ast.Lambda))


def _uncall(facts: Facts, call: ast.Call) -> Fix | None:
    source = facts.source
    start, end = source.end(source.span(call.func)), source.end(source.span(call))
    span = source.between(start, end)
    if "#" in source.segment(span):
        return None
    return Fix("Remove the empty parentheses", (Edit(span, ""),), "safe")
