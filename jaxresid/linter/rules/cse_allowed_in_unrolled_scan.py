from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import conditions, cse
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Loop


class CseAllowedInUnrolledScan(Rule):
    """`prevent_cse=False` in the body of a scan that is unrolled completely.

    ## What it does
    Finds a literal `prevent_cse=False` whose function is, or is called in, the body of a loop with
    `unroll=True`, an `unroll` of at least the length, or a length of 1; also where a switch decides
    that, as in `unroll=n if unroll_layers else 1`. The default of a parameter counts, as in
    `unroll: int = 100`, where no visible caller gives another value.

    ## Why is this bad?
    In a loop `prevent_cse=False` is right, because the forward and the backward loop are apart.
    Unrolled completely there is no loop: under `jax.jit` XLA merges the recomputation with the
    forward pass, and a loop of length 1 is removed too.

    ## Use instead
    The default, `prevent_cse=True`, or an unrolling that leaves a loop: `unroll=2`.

    ## When is this fine?
    Where all of it runs in an outer loop that the rule does not see.

    ## Is the fix safe?
    No: it removes the argument, so that the compiled program recomputes, as was meant.
    """

    code = "JXR402"
    name = "cse-allowed-in-unrolled-scan"
    severity = "warning"
    why = "The loop that keeps the recomputation apart from the forward pass is gone."
    help = "leave `prevent_cse` out, or unroll less"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step, prevent_cse=False)  # !
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=True)[0])
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step)
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=True)[0])
            """,
        ),
    )
    good = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step)
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=True)[0])
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=2)[0])
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            value = cse.false_prevent_cse(facts, site)
            found = cse.enclosing_unrolled_loop(facts, site) if value is not None else None
            if value is None or found is None:
                continue
            loop, condition = found
            where = ""
            if condition is not None:
                where = f" where `{conditions.text(facts, condition)}` is {condition.holds}"
            yield self.report(
                facts,
                site.node,
                f"{stages.site_text(facts, site)} with `prevent_cse=False` runs in "
                f"`{_spelled(loop)}`, which is unrolled completely{where}: under `jax.jit` the "
                "recomputation is merged away",
                fix=cse.without_prevent_cse(facts, site, value),
                related=stages.related_place(facts, loop.node, "unrolled here"),
            )


def _spelled(loop: Loop) -> str:
    node = loop.node.func if isinstance(loop.node, ast.Call) else loop.node
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else "the loop"
