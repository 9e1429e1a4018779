from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Related, Violation
from jaxresid.linter.patterns import cse
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.uses import RemoteCheckpoint
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class CseAllowedInNestedCheckpoint(Rule):
    """`prevent_cse=False` on a checkpoint inside another checkpointed function.

    ## What it does
    Finds a literal `prevent_cse=False` whose function is called in a function or a module that is
    checkpointed itself, or called in one that is, in any files of the project, with no staged loop
    or branch in between.

    ## Why is this bad?
    The backward pass of the outer function recomputes its forward pass, inner functions included,
    and the inner ones recompute once more, in the same computation. Under `jax.jit` XLA merges the
    two, and the inner checkpoints might as well not be there. A loop around the outer one does not
    change that: it separates only the outer checkpoint from its forward pass. The newer
    implementation (`jax_remat3`) keeps the two apart.

    ## Use instead
    The default, `prevent_cse=True`, for the inner ones; False at most for the outer one.

    ## When is this fine?
    Where the inner function is the body of a loop inside the outer one: the rule is silent there.
    Where `jax_remat3` is on.

    ## Is the fix safe?
    No: it removes the argument, so that the compiled program recomputes, as was meant.
    """

    code = "JXR403"
    name = "cse-allowed-in-nested-checkpoint"
    severity = "warning"
    why = "XLA merges the inner recomputation with the outer one, as both are in one computation."
    help = "leave `prevent_cse` out for the inner checkpoint"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(x, ws):
                inner = jax.checkpoint(layer, prevent_cse=False)  # !
                for w in ws:
                    x = inner(w, x)
                return x, None


            def loss(ws, x):
                body = jax.checkpoint(pair, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws)[0])
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(x, ws):
                inner = jax.checkpoint(layer)
                for w in ws:
                    x = inner(w, x)
                return x, None


            def loss(ws, x):
                body = jax.checkpoint(pair, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws)[0])
            """,
        ),
    )
    good = (
        Example(  # the default inside, False outside
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(x, ws):
                inner = jax.checkpoint(layer)
                for w in ws:
                    x = inner(w, x)
                return x, None


            def loss(ws, x):
                body = jax.checkpoint(pair, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws)[0])
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            value = cse.false_prevent_cse(facts, site)
            outer = cse.enclosing_checkpoint(facts, site) if value is not None else None
            if value is None or outer is None:
                continue
            note = "the outer checkpoint"
            if isinstance(outer, RemoteCheckpoint):
                related: tuple[Related, ...] = (Related(note, outer.path, outer.span),)
                where = f"what `{outer.callee}` wraps in {outer.path}"
            else:
                related = stages.related_place(facts, outer.node, note)
                where = stages.site_text(facts, outer)
            yield self.report(
                facts,
                site.node,
                f"{stages.site_text(facts, site)} with `prevent_cse=False` is inside {where}: "
                "under `jax.jit` its recomputation is merged with that of the outer one",
                fix=cse.without_prevent_cse(facts, site, value),
                related=related,
            )
