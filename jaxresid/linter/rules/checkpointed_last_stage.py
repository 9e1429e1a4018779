from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.fixes.unwrapping import remove_checkpoint
from jaxresid.linter.resolve import results, stages
from jaxresid.linter.resolve.names import FunctionNode
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use


class CheckpointedLastStage(Rule):
    """The last stage of the differentiated function is checkpointed.

    ## What it does
    Finds `return jax.checkpoint(head)(x)` (through means, sums and the like) at the end of a
    function that is differentiated as a whole, after other stages; also where the result is handed
    out in a dictionary, a data class or a tuple, whose part the loss takes.

    ## Why is this bad?
    The backward pass begins with the last stage: what the checkpoint dropped is recomputed at once,
    while nothing has been freed yet. The peak stays, and the stage is computed twice.

    ## Use instead
    Leave the last stage plain and checkpoint the stages before it.

    ## When is this fine?
    With a policy. Where the function is itself a part of a larger one, a loop's body or mapped. A
    gradient taken in a loop counts only where an optimizer gets it (`tx.update(grads, state)`).

    ## Is the fix safe?
    No: values stay the same, memory and time may change.
    """

    code = "JXR102"
    name = "checkpointed-last-stage"
    severity = "warning"
    lenient_in_tests = True
    why = (
        "The backward pass begins here: what is dropped is recomputed at once, before anything "
        "else is freed."
    )
    help = "leave the last stage plain, and checkpoint the stages before it"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def trunk(w, x):
                return jnp.tanh(x @ w)


            def head(w, h):
                return jnp.sin(h @ w).sum()


            def loss(w, x):
                h = trunk(w, x)
                return jax.checkpoint(head)(w, h)  # !


            step = jax.jit(jax.value_and_grad(loss))
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def trunk(w, x):
                return jnp.tanh(x @ w)


            def head(w, h):
                return jnp.sin(h @ w).sum()


            def loss(w, x):
                h = trunk(w, x)
                return head(w, h)


            step = jax.jit(jax.value_and_grad(loss))
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def loss(trunk, head, w, x):
                h = jax.checkpoint(trunk)(w, x)
                return head(w, h)


            step = jax.grad(loss, argnums=2)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            if site.api.loop or not facts.policy(site).saves_nothing:
                continue
            found = _last_stage(facts, site)
            if found is not None:
                function, derivative = found
                name = getattr(function, "name", "the differentiated function")
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} is the last stage of `{name}`, which is "
                    "differentiated: what it drops is recomputed at once, so the peak stays",
                    fix=remove_checkpoint(facts, site),
                    related=stages.related_place(facts, derivative.node, "differentiated here"),
                )


def _last_stage(facts: Facts, site: Site) -> tuple[FunctionNode, Use] | None:
    """The function whose last stage a site is, and what differentiates it."""
    uses = facts.site_uses(site)
    if len(uses) != 1 or uses[0].kind != "call" or uses[0].through:
        return None  # a function that is called elsewhere too is a stage there
    if site.definition is not None and facts.remote_uses(site.definition):
        return None
    call = uses[0].node
    function = facts.names.function(call)
    if not isinstance(call, ast.Call) or function is None:
        return None
    parts = results.parts(facts, function, call)
    if not parts or not _has_earlier_stage(facts, function, call):
        return None
    derivative = stages.differentiating(facts, function, whole=False, parts=parts)
    return (function, derivative) if derivative is not None else None


def _has_earlier_stage(facts: Facts, function: FunctionNode, call: ast.Call) -> bool:
    """Whether what the call gets was computed in the function: by a call, or by a matmul."""
    for argument in (*call.args, *(k.value for k in call.keywords)):
        if not results.sets_up(facts, argument):
            return True
        for node in ast.walk(argument):
            for binding in facts.names.bindings(node) if isinstance(node, ast.Name) else ():
                made = binding.value if binding.kind == "assign" else None
                if (
                    made is not None
                    and facts.names.function(made) is function
                    and not results.sets_up(facts, made)
                ):
                    return True
    return False
