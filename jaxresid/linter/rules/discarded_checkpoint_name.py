from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Fix, Violation
from jaxresid.linter.fixes import edits
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Named


class DiscardedCheckpointName(Rule):
    """A value is named and the named value thrown away.

    ## What it does
    Finds `checkpoint_name(y, "a")` as a statement of its own.

    ## Why is this bad?
    `checkpoint_name` does not mark `y`; it returns a new value, and only that one has the name.
    A policy that saves `"a"` finds nothing to save.

    ## Use instead
    Bind the result to the same name, so that all later code uses it:
    `y = checkpoint_name(y, "a")`.

    ## When is this fine?
    Never; the statement has no effect.

    ## Is the fix safe?
    No: it makes the policy work, which changes what is kept in memory.
    """

    code = "JXR303"
    name = "discarded-checkpoint-name"
    severity = "error"
    why = "checkpoint_name returns the named value; the one it was given has no name."
    help = "bind the result to the same variable"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            @functools.partial(
                jax.checkpoint,
                policy=jax.checkpoint_policies.save_only_these_names("a"),
            )
            def block(w, x):
                y = x @ w
                checkpoint_name(y, "a")  # !
                return jnp.sin(jnp.sin(y))
            """,
            fixed="""
            import functools

            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            @functools.partial(
                jax.checkpoint,
                policy=jax.checkpoint_policies.save_only_these_names("a"),
            )
            def block(w, x):
                y = x @ w
                y = checkpoint_name(y, "a")
                return jnp.sin(jnp.sin(y))
            """,
        ),
    )
    good = (
        Example(
            """
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                y = checkpoint_name(x @ w, "a")
                return jnp.sin(y)
            """
        ),
        Example(
            """
            from jax.ad_checkpoint import checkpoint_name


            def block(w, x):
                return checkpoint_name(x @ w, "a")
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for named in facts.named:
            if isinstance(facts.names.parents.get(named.node), ast.Expr):
                what = f"the value named `{named.name}`" if named.name else "the named value"
                yield self.report(
                    facts,
                    named.node,
                    f"{what} is thrown away: this statement has no effect",
                    fix=_bind(facts, named),
                )


def _bind(facts: Facts, named: Named) -> Fix | None:
    value = named.value
    if not isinstance(value, ast.Name):
        return None
    function = facts.names.function(named.node)
    bindings = facts.names.bindings(value)
    if function is None or not bindings or any(b.owner is not function for b in bindings):
        return None
    return edits.bind_result(facts, named.node, value)
