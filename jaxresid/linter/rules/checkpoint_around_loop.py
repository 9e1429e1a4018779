from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Edit, Fix, Violation
from jaxresid.linter.fixes.unwrapping import remove_checkpoint
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Loop, Site

_SEVERAL = 2


class CheckpointAroundLoop(Rule):
    """A checkpoint wraps a whole staged loop whose body is not checkpointed.

    ## What it does
    Finds a checkpointed function that is nothing but a `lax.scan`, `lax.map` or `fori_loop`, apart
    from what sets it up (constants, unpacking, other shapes), and `nn.remat(nn.scan(Block))`, where
    the loop's body is visible and has no checkpoint.

    ## Why is this bad?
    The backward pass recomputes the whole loop at once and stacks the residuals of every step, so
    the peak is that of the plain loop. On a six-layer scan 11.9 MiB with and without; with the body
    checkpointed instead, 3.4 MiB.

    ## Use instead
    Checkpoint the body: `lax.scan(jax.checkpoint(step, prevent_cse=False), carry, xs)`,
    `nn.scan(nn.remat(Block, prevent_cse=False))`.

    ## When is this fine?
    Where the loop is one of several stages, each wrapped (the wrapping then bounds the peak to one
    stage), inside another loop (one wrap per level), or with a policy. The rule is silent there.

    ## Is the fix safe?
    No: values stay the same, memory and time change.
    """

    code = "JXR103"
    name = "checkpoint-around-loop"
    severity = "warning"
    lenient_in_tests = True
    why = (
        "The backward pass recomputes the whole loop at once and stacks the residuals of every "
        "step: the peak is that of the plain loop."
    )
    help = "checkpoint the loop's body instead, with prevent_cse=False"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp
            from jax import lax


            def step(c, w):
                return jnp.tanh(c @ w), None


            def loss(ws, x):
                h, _ = jax.checkpoint(lambda c: lax.scan(step, c, ws))(x)  # !
                return h.sum()


            gradient = jax.grad(loss)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp
            from jax import lax


            def step(c, w):
                return jnp.tanh(c @ w), None


            def loss(ws, x):
                h, _ = lax.scan(jax.checkpoint(step, prevent_cse=False), x, ws)
                return h.sum()


            gradient = jax.grad(loss)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(c, w):
                return jnp.tanh(c @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step, prevent_cse=False)
                h, _ = jax.lax.scan(body, x, ws)
                return h.sum()
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            if site.api.loop or not facts.policy(site).saves_nothing:
                continue
            loops = stages.whole_loops(facts, site)
            if not loops or not all(loop.bodies for loop in loops):
                continue
            bodies = [body for loop in loops for body in loop.bodies]
            if any(stages.is_checkpointed(facts, b) is not False for b in bodies):
                continue
            loop = loops[0]
            if _stands_alone(facts, site):
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} wraps the whole "
                    f"`{ast.unparse(_callee(loop))}`: this saves no peak memory, its body "
                    f"`{ast.unparse(loop.bodies[0])}` is what to checkpoint",
                    fix=_moved(facts, site, loop) if len(loops) == 1 else None,
                    related=stages.related_place(facts, loop.node, "the loop"),
                )


def _callee(loop: Loop) -> ast.expr:
    return loop.node.func if isinstance(loop.node, ast.Call) else loop.node


def _stands_alone(facts: Facts, site: Site) -> bool:
    """Whether the wrapped loop is used once, at no place where it is one of several stages."""
    uses = [u for u in facts.site_uses(site) if u.kind != "discarded"]
    if (
        len(uses) != 1
        or uses[0].kind not in {"call", "derivative"}
        or "iterated" in uses[0].through
    ):
        return False
    if site.definition is not None and any(
        u.kind != "derivative" for u in facts.remote_uses(site.definition)
    ):
        return False
    for place in (uses[0].node, site.node):
        context = facts.context(place)
        if context.loop or context.python_loop or context.checkpoint or context.only_rule:
            return False
    if uses[0].kind == "derivative":
        return True
    function = facts.names.function(uses[0].node)
    others = [s for s in facts.sites if s is not site and facts.names.function(s.node) is function]
    return len(others) + 1 < _SEVERAL


def _moved(facts: Facts, site: Site, loop: Loop) -> Fix | None:
    """The checkpoint taken off the loop and put around its body."""
    if site.api.library != "jax" or len(loop.bodies) != 1 or loop.api.curried:
        return None
    removal = remove_checkpoint(facts, site)
    if removal is None or site.arguments.keywords:
        return None
    callee = ast.unparse(site.node.func if isinstance(site.node, ast.Call) else site.node)
    source = facts.source
    body = source.segment(source.span(loop.bodies[0]))
    wrapped = Edit(source.span(loop.bodies[0]), f"{callee}({body}, prevent_cse=False)")
    (removed,) = removal.edits
    inner = source.start(wrapped.span), source.end(wrapped.span)
    outer = source.start(removed.span), source.end(removed.span)
    if outer[0] <= inner[0] and inner[1] <= outer[1]:
        # The body stands inside the text that the removal writes anew: one edit for both.
        if removed.text.count(body) != 1:
            return None
        edit = Edit(removed.span, removed.text.replace(body, wrapped.text))
        return Fix("Checkpoint the loop's body instead", (edit,), "unsafe")
    return Fix("Checkpoint the loop's body instead", (removed, wrapped), "unsafe")
