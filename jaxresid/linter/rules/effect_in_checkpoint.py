from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.patterns import checkpoint_calls
from jaxresid.linter.resolve import results, stages
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

_REPEATED = frozenset(
    {
        "jax.debug.print",
        "jax.debug.callback",
        "jax.debug.breakpoint",
        "jax.pure_callback",
        "jax.experimental.pure_callback",
    }
)
_REFUSED = frozenset({"jax.experimental.io_callback"})


class EffectInCheckpoint(Rule):
    """A checkpointed function calls back into Python.

    ## What it does
    Finds `jax.debug.print`, `jax.debug.callback`, `jax.pure_callback` and
    `jax.experimental.io_callback` in the body of a checkpointed function.

    ## Why is this bad?
    The backward pass computes the body a second time, and prints or calls back a second time.
    `io_callback` under a checkpoint raises a NotImplementedError as soon as it is differentiated.

    ## Use instead
    Call back outside of the checkpointed function, on a value that it returns.

    ## When is this fine?
    Where a second call does no harm, such as in debugging, or where nothing is differentiated.
    """

    code = "JXR508"
    name = "effect-in-checkpoint"
    severity = "info"
    why = "The backward pass runs the body of a checkpoint again, callbacks included."
    help = "call back outside of the checkpointed function"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            @jax.checkpoint
            def layer(x):
                jax.debug.print('x = {}', x)  # !
                return jnp.sin(x)
            """
        ),
    )
    good = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            @jax.checkpoint
            def layer(x):
                return jnp.sin(x)


            def loss(x):
                y = layer(x)
                jax.debug.print('y = {}', y)
                return y.sum()
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            @jax.jit
            def layer(x):
                jax.debug.print('x = {}', x)
                return jnp.sin(x)


            block = jax.checkpoint(jnp.sin)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        seen = set()
        for site in facts.sites:
            if facts.policy(site).name == "everything_saveable":
                continue
            for call, qualname in _effects(facts, site):
                if call in seen or checkpoint_calls.is_error_expected(facts, site.node):
                    continue
                seen.add(call)
                name = ast.unparse(call.func)
                what = "runs once more in the backward pass"
                if qualname in _REFUSED:
                    what = "raises where the checkpoint around it is differentiated"
                yield self.report(
                    facts,
                    call,
                    f"`{name}` {what}",
                    related=stages.related_place(facts, site.node, "the checkpoint"),
                )


def _effects(facts: Facts, site: Site) -> Iterator[tuple[ast.Call, str]]:
    """The calls back into Python that a checkpointed function makes itself."""
    target = facts.target(site)
    if isinstance(target, ast.ClassDef):
        target = facts.names.method(target, "__call__")
    if not isinstance(target, (ast.FunctionDef, ast.Lambda)):
        return
    for node in results.own_nodes(target):
        if isinstance(node, ast.Call):
            origins = facts.names.qualnames(node.func)
            if len(origins) == 1 and origins[0] in _REPEATED | _REFUSED:
                yield node, origins[0]
