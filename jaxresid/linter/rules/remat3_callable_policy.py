from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.resolve.names import FunctionNode
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class Remat3CallablePolicy(Rule):
    """A custom policy function, which `jax_remat3` asks about few operations.

    ## What it does
    Finds checkpoints whose policy is a lambda or a function that is defined here and does more than
    call a policy of `jax.checkpoint_policies`.

    ## Why is this bad?
    The present implementation asks the policy about every primitive. The one behind the flag
    `jax_remat3`, which is on its way to becoming the default, asks only about matrix products,
    convolutions and `checkpoint_name` (jax 0.12; in 0.10.2 not even about all of these). Results of
    other operations that the policy would save are then silently recomputed. Its documentation
    leaves custom functions to "older versions".

    ## Use instead
    A policy of `jax.checkpoint_policies`; `checkpoint_name` on the values to keep, with
    `save_only_these_names`.

    ## When is this fine?
    Where the function looks only at matrix products and names, or `jax_remat3` stays off.
    """

    code = "JXR701"
    name = "remat3-callable-policy"
    severity = "info"
    jax = ">=0.10.2"
    why = "With `jax_remat3` a policy is asked about matrix products, convolutions and names only."
    help = "name the values with `checkpoint_name` and save them with `save_only_these_names`"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def keep_sin(prim, *_, **params):
                return str(prim) == "sin"


            def block(x):
                return jnp.sin(jnp.sin(jnp.sin(x)))


            run = jax.checkpoint(block, policy=keep_sin)  # !
            """
        ),
    )
    good = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            run = jax.checkpoint(jnp.sin, policy=jax.checkpoint_policies.dots_saveable)
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            names = jax.checkpoint_policies.save_only_these_names('a')
            run = jax.checkpoint(jnp.sin, policy=names)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        if not facts.jax_is((0, 10)):
            return
        for site in facts.sites:
            policy = facts.policy(site)
            if policy.kind != "callable" or policy.node is None or policy.function is None:
                continue
            if _hands_on(facts, policy.function):
                continue
            what = (
                "the policy is a lambda"
                if isinstance(policy.node, ast.Lambda)
                else f"the policy `{ast.unparse(policy.node)}` is a function of your own"
            )
            yield self.report(
                facts,
                site.node,
                f"{what}: with `jax_remat3` it is asked about matrix products, convolutions and "
                "names only",
            )


def _hands_on(facts: Facts, function: FunctionNode) -> bool:
    """Whether all that a function calls is policies."""
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)]
    return bool(calls) and all(facts.role(c.func, "policy") is not None for c in calls)
