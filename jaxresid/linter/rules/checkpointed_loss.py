from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Related, Violation
from jaxresid.linter.fixes.unwrapping import remove_checkpoint
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use

# A mapped checkpoint keeps and recomputes the whole batch at once, as an unmapped one does.
_TRANSPARENT = {"jit", "vmap", "partial", "class", "instance"}


class CheckpointedLoss(Rule):
    """The whole differentiated function is checkpointed, without a policy.

    ## What it does
    Finds a function that is checkpointed as a whole and then handed to `jax.grad`,
    `jax.value_and_grad`, `jax.vjp` or a library's form of them, in the same file or in another one
    of the project. What may come after it are sums, means and arithmetic with what the loss is
    given: `jnp.mean((model.apply(params, x) - y) ** 2)`.

    ## Why is this bad?
    The residuals shrink to the arguments, but the backward pass starts by recomputing all of them
    at once, so the peak is normally where it was. What changes is the time: under
    `jax.value_and_grad` the forward pass runs twice (a third more FLOPs on a plain network).

    ## Use instead
    Checkpoint the parts: each layer, or the body of the scan over layers. Or keep the outer
    checkpoint and give it a policy that saves what is expensive to recompute.

    ## When is this fine?
    With a policy. Inside a staged loop, a `lax.map` or another derivative, where the function is
    one of many; in a rule of `custom_vjp`. In a loop of gradients that is differentiated itself:
    the rule speaks in a loop only where an optimizer gets the gradient (`tx.update(grads, state)`).
    The compiler's scheduling can still move the peak by some 10 %, and on sharded models the
    barrier also keeps gathered weights from being shared between the passes: measure before you
    remove it there.

    ## Is the fix safe?
    No: values stay the same, memory and time may change.
    """

    code = "JXR101"
    name = "checkpointed-loss"
    severity = "warning"
    lenient_in_tests = True
    why = (
        "The backward pass begins by recomputing every residual at once, so the peak is where it "
        "was, and value_and_grad runs the forward pass twice."
    )
    help = "checkpoint the layers instead, or give it a policy"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def loss(w, x):
                for _ in range(3):
                    x = jnp.tanh(x @ w)
                return x.sum()


            def step(w, x):
                return jax.value_and_grad(jax.checkpoint(loss))(w, x)  # !
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def loss(w, x):
                for _ in range(3):
                    x = jnp.tanh(x @ w)
                return x.sum()


            def step(w, x):
                return jax.value_and_grad(loss)(w, x)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def layer(w, x):
                return jax.numpy.tanh(x @ w)


            def loss(ws, x):
                for w in ws:
                    x = jax.checkpoint(layer)(w, x)
                return x.sum()


            gradient = jax.grad(loss)
            """
        ),
        Example(
            """
            import jax


            def step(loss, w):
                cp = jax.checkpoint_policies
                return jax.grad(jax.checkpoint(loss, policy=cp.dots_saveable))(w)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            if site.api.loop or not facts.policy(site).saves_nothing:
                continue
            loops = stages.whole_loops(facts, site)
            if loops and not any(
                stages.is_checkpointed(facts, b) is not False for one in loops for b in one.bodies
            ):
                continue  # checkpoint-around-loop has the better remedy
            evidence = _evidence(facts, site)
            if evidence is not None:
                by, related = evidence
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} wraps the whole function that `{by}` "
                    "differentiates: this normally saves no peak memory and recomputes the "
                    "forward pass",
                    fix=remove_checkpoint(facts, site),
                    related=related,
                )


def _evidence(facts: Facts, site: Site) -> tuple[str, tuple[Related, ...]] | None:
    """What differentiates the whole of a site: its name and where."""
    uses = facts.site_uses(site)
    found = stages.top_derivatives(facts, uses)
    if any("made" in u.through for u in uses) and facts.target(site) is None:
        return None  # a wrapper, which others may call for something else
    if found is None:
        return _inside(facts, uses)
    if found:
        by = stages.derivative_name(facts, found[0])
        return by, stages.related_place(facts, found[0].node, "differentiated here")
    remote = facts.remote_uses(site.definition) if site.definition is not None else ()
    if any(u.in_loop or u.in_reverse or u.kind in {"loop", "checkpoint", "rule"} for u in remote):
        return None
    for use in remote:
        if use.kind == "derivative" and not use.forward and "custom" not in use.through:
            return use.callee, (Related("differentiated here", use.path, use.span),)
    return None


def _inside(facts: Facts, uses: tuple[Use, ...]) -> tuple[str, tuple[Related, ...]] | None:
    """The same where a function does nothing but call the checkpointed one."""
    if len(uses) != 1 or uses[0].kind != "call" or not set(uses[0].through) <= _TRANSPARENT:
        return None
    call = uses[0].node
    function = facts.names.function(call)
    if (
        not isinstance(call, ast.Call)
        or function is None
        or not stages.is_whole(facts, function, call)
    ):
        return None
    found = stages.differentiating(facts, function, whole=True)
    if found is None:
        return None
    by = stages.derivative_name(facts, found)
    return by, stages.related_place(facts, found.node, "differentiated here")
