from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.fixes.unwrapping import remove_checkpoint
from jaxresid.linter.patterns import dead_ends, stopped
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use


class UndifferentiatedCheckpoint(Rule):
    """Nothing ever runs this checkpoint's function backward.

    ## What it does
    Finds a checkpointed function whose every visible use is under forward-mode differentiation
    (`jax.jvp`, `jax.jacfwd`) or inside the rules of a `custom_vjp`, of this module or another of the
    project, which JAX does not differentiate; one that gets, or gives, nothing but values that go
    through `stop_gradient`, at its calls or in its own body; and one whose results, those of the
    loop or the ODE that runs it, all become NumPy arrays or Python numbers, as in a simulation that
    ends in `np.asarray`.

    ## Why is this bad?
    A checkpoint only changes what reverse mode keeps. Here there is no reverse mode, so it drops
    nothing.

    ## Use instead
    The function itself.

    ## When is this fine?
    Where a rule takes a `jax.vjp` of the checkpointed function itself, where the function is used
    elsewhere too, or where one argument, one result or a value it closes over is not stopped. The
    rule is silent there.

    ## Is the fix safe?
    No: values stay the same, but the checkpoint is also a barrier to the compiler.
    """

    code = "JXR108"
    name = "undifferentiated-checkpoint"
    severity = "warning"
    lenient_in_tests = True
    why = "A checkpoint changes only what reverse-mode differentiation keeps."
    help = "use the function itself"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax


            def f(x):
                return jax.numpy.sin(jax.numpy.sin(x))


            def directional(x, t):
                return jax.jvp(jax.checkpoint(f), (x,), (t,))  # !
            """,
            fixed="""
            import jax


            def f(x):
                return jax.numpy.sin(jax.numpy.sin(x))


            def directional(x, t):
                return jax.jvp(f, (x,), (t,))
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def net(w, x):
                return jax.nn.gelu(x @ w)


            def loss(w, x):
                return jax.checkpoint(net)(w, jax.lax.stop_gradient(x)).sum()
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            reason = _reason(facts, site)
            if reason:
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} has no effect: {reason}",
                    fix=remove_checkpoint(facts, site),
                )


def _reason(facts: Facts, site: Site) -> str:
    inside = stopped.stops_inside(facts, site)
    if inside:
        return inside
    uses = facts.site_uses(site)
    if not uses or (site.definition is not None and facts.remote_uses(site.definition)):
        return ""
    reasons = {_no_reverse(facts, site, use) for use in uses}
    return reasons.pop() if len(reasons) == 1 else ""


def _no_reverse(facts: Facts, site: Site, use: Use) -> str:
    """Why one use is not differentiated in reverse mode; empty where it may be."""
    # Even a derivative taken around the call stops here.
    ended = dead_ends.dead_end(facts, use)
    if ended:
        return ended
    if use.kind == "call" and stopped.arguments_are_stopped(facts, site, use):
        return "its arguments go through stop_gradient"
    context = facts.context(use.node)
    if context.reverse:
        return ""
    if use.kind == "derivative" and use.mode == "forward":
        return "" if _differentiated_later(facts, use) else "only forward mode differentiates it"
    if use.kind in {"call", "loop"} and context.only_rule:
        return "it runs only inside a custom_vjp, which JAX does not differentiate"
    return ""


def _differentiated_later(facts: Facts, use: Use) -> bool:
    """Whether what forward mode gives may be differentiated in turn (Hessians): `jacfwd` makes a
    function, `jvp` runs in one that somebody might differentiate.
    """
    return any(u.kind in {"derivative", "loop", "checkpoint"} for u in facts.uses(use.node))
