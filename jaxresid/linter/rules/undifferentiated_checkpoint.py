from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use

_STOPS = frozenset({"jax.lax.stop_gradient"})


class UndifferentiatedCheckpoint(Rule):
    """Nothing ever runs this checkpoint's function backward.

    ## What it does
    Finds a checkpointed function whose every visible use is under forward-mode differentiation
    (`jax.jvp`, `jax.jacfwd`), under `stop_gradient`, or inside the rules of a `custom_vjp`, which
    JAX does not differentiate.

    ## Why is this bad?
    A checkpoint only changes what reverse mode keeps. Here there is no reverse mode, so it drops
    nothing.

    ## Use instead
    The function itself.

    ## When is this fine?
    Where a rule takes a `jax.vjp` of the checkpointed function itself, or where the function is
    used elsewhere too. The rule is silent there.

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
        Example(
            """
            import jax
            from functools import partial


            @jax.custom_vjp
            def run(xs):
                return _forward(xs)


            def _forward(xs):
                @partial(jax.checkpoint, prevent_cse=False)  # !
                def step(c, x):
                    return c + jax.numpy.sin(x), None

                return jax.lax.scan(step, 0.0, xs)[0]


            def fwd(xs):
                return _forward(xs), xs


            def bwd(xs, ct):
                return (ct * jax.numpy.cos(xs),)


            run.defvjp(fwd, bwd)
            """,
            fixed="""
            import jax
            from functools import partial


            @jax.custom_vjp
            def run(xs):
                return _forward(xs)


            def _forward(xs):
                def step(c, x):
                    return c + jax.numpy.sin(x), None

                return jax.lax.scan(step, 0.0, xs)[0]


            def fwd(xs):
                return _forward(xs), xs


            def bwd(xs, ct):
                return (ct * jax.numpy.cos(xs),)


            run.defvjp(fwd, bwd)
            """,
        ),
        Example(
            """
            import jax


            def targets(net, w, x):
                return jax.lax.stop_gradient(jax.checkpoint(net)(w, x))  # !
            """,
            fixed="""
            import jax


            def targets(net, w, x):
                return jax.lax.stop_gradient(net(w, x))
            """,
        ),
    )
    good = (
        Example("""
            import jax


            def apply(f, x):
                return jax.checkpoint(f)(x)
            """),
        Example(
            """
            import jax


            @jax.checkpoint
            def f(x):
                return jax.numpy.sin(x)


            def both(x, t):
                y = jax.jvp(f, (x,), (t,))
                return y, jax.grad(f)(x)
            """
        ),
        Example(
            """
            import jax


            def second(f, x, t):
                def along(x):
                    return jax.jvp(jax.checkpoint(f), (x,), (t,))[1]

                return jax.grad(along)(x)
            """
        ),
        Example(
            """
            import jax


            @jax.custom_vjp
            def f(x):
                return _f(x)


            def _f(x):
                return x * x


            def fwd(x):
                return jax.vjp(jax.checkpoint(_f), x)


            def bwd(vjp, ct):
                return vjp(ct)


            f.defvjp(fwd, bwd)
            """
        ),
        Example(
            """
            import jax


            @jax.custom_jvp
            def f(x):
                return jax.checkpoint(jax.numpy.sin)(x)


            @f.defjvp
            def rule(primals, tangents):
                return f(*primals), tangents[0]
            """
        ),
        Example(
            """
            import jax


            def helper(step, xs):
                return jax.lax.scan(jax.checkpoint(step), 0.0, xs)


            @jax.custom_vjp
            def run(step, xs):
                return helper(step, xs)


            def other(step, xs):
                return helper(step, xs)
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
                    f"{stages.spelled(facts, site)} has no effect: {reason}",
                    fix=edits.without_checkpoint(facts, site),
                )


def _reason(facts: Facts, site: Site) -> str:
    uses = facts.site_uses(site)
    if not uses or (site.definition is not None and facts.remote_uses(site.definition)):
        return ""
    reasons = {_no_reverse(facts, use) for use in uses}
    return reasons.pop() if len(reasons) == 1 else ""


def _no_reverse(facts: Facts, use: Use) -> str:
    """Why one use is not differentiated in reverse mode; empty where it may be."""
    standing = facts.standing(use.node)
    if standing.reverse:
        return ""
    if use.kind == "derivative" and use.mode == "forward":
        return "" if _differentiated_later(facts, use) else "only forward mode differentiates it"
    if use.kind not in {"call", "loop"}:
        return ""
    if use.kind == "call" and _is_stopped(facts, use.node):
        return "its result goes through stop_gradient"
    if standing.only_rule:
        return "it runs only inside a custom_vjp, which JAX does not differentiate"
    return ""


def _differentiated_later(facts: Facts, use: Use) -> bool:
    """Whether what forward mode gives may be differentiated in turn (Hessians): `jacfwd` makes a
    function, `jvp` runs in one that somebody might differentiate.
    """
    return any(u.kind in {"derivative", "loop", "checkpoint"} for u in facts.uses(use.node))


def _is_stopped(facts: Facts, call: ast.AST) -> bool:
    parent = facts.names.parents.get(call)
    return (
        isinstance(parent, ast.Call)
        and call in parent.args
        and any(q in _STOPS for q in facts.names.qualnames(parent.func))
    )
