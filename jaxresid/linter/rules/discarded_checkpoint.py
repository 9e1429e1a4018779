from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Fix, Violation
from jaxresid.linter.fixes import edits
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site


class DiscardedCheckpoint(Rule):
    """A checkpointed function is made and thrown away.

    ## What it does
    Finds `jax.checkpoint(f)` as a statement of its own.

    ## Why is this bad?
    `jax.checkpoint` does not change `f`; it returns a new function. If nothing calls that one, the
    calls of `f` keep all their residuals.

    ## Use instead
    Bind the result, `f = jax.checkpoint(f)`, or call it at once: `jax.checkpoint(f)(x)`.

    ## When is this fine?
    Never; a call that only shows that the arguments are accepted belongs in a test with an
    `assert`.

    ## Is the fix safe?
    No: it binds the result to the name that was checkpointed, so that later calls recompute.
    """

    code = "JXR105"
    name = "discarded-checkpoint"
    severity = "error"
    why = "checkpoint returns a new function; the one it was given is unchanged."
    help = "bind the result and call that"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax


            def loss(block, x):
                jax.checkpoint(block)  # !
                return block(x).sum()
            """,
            fixed="""
            import jax


            def loss(block, x):
                block = jax.checkpoint(block)
                return block(x).sum()
            """,
        ),
    )
    good = (
        Example("""
            import jax


            def loss(block, x):
                return jax.checkpoint(block)(x).sum()
            """),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            parent = facts.names.parents.get(site.node)
            if site.form == "call" and isinstance(parent, ast.Expr):
                what = ast.unparse(site.target) if site.target is not None else "the function"
                yield self.report(
                    facts,
                    site.node,
                    f"the checkpointed `{what}` is thrown away: this statement has no effect",
                    fix=_bind(facts, site),
                )


def _bind(facts: Facts, site: Site) -> Fix | None:
    target = site.target
    if not isinstance(target, (ast.Name, ast.Attribute)):
        return None
    # Assigned in another scope than its own, the name would be a new, unbound one.
    if isinstance(target, ast.Name) and not any(
        b.owner is facts.names.scopes[target].node for b in facts.names.bindings(target)
    ):
        return None
    return edits.bind_result(facts, site.node, target)
