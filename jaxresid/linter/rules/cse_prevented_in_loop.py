from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Fix, Violation
from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import conditions, cse, unrolling
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Loop, Site


# Loops whose backward pass runs each step forward again, beside what a checkpoint recomputes.
_RUN_AGAIN = "equinox.internal."


class CsePreventedInLoop(Rule):
    """The body of a staged loop is checkpointed with barriers that it does not need.

    ## What it does
    Finds a checkpoint with the default `prevent_cse=True` whose function is, or is called in, the
    body of `lax.scan`, `lax.map`, `lax.fori_loop`, `nn.scan`, `nnx.scan`, `hk.layer_stack` and the
    like, and nowhere else; or that one arm of an `if` scans and the other calls layer by layer.

    ## Why is this bad?
    The loop already keeps the recomputation apart from the forward pass. The barriers that
    `prevent_cse=True` puts into the backward pass can keep the compiler from other optimizations;
    the documentation recommends False in a scan. On the CPU no difference was measured.

    ## Use instead
    `jax.checkpoint(step, prevent_cse=False)`; under `if cfg.scan_layers`,
    `prevent_cse=not cfg.scan_layers`.

    ## When is this fine?
    Where the loop may be unrolled completely, or the function is also called outside it.

    ## Is the fix safe?
    No: the results are the same, but the compiled program differs.
    """

    code = "JXR404"
    name = "cse-prevented-in-loop"
    severity = "info"
    why = "In a staged loop the barriers are not needed and can keep XLA from optimizing."
    help = "give `prevent_cse=False`"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                return jnp.sum(jax.lax.scan(jax.checkpoint(step), x, ws)[0])  # !
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                return jnp.sum(jax.lax.scan(jax.checkpoint(step, prevent_cse=False), x, ws)[0])
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
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws)[0])
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            if site.api.loop or "prevent_cse" not in site.api.keywords:
                continue
            if facts.prevent_cse(site) is not True:
                continue
            loop = _loop(facts, site)
            choice = cse.only_if(facts, site) if loop is None else None
            if loop is not None:
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} {_is_run_by(facts, site)} "
                    f"`{cse.loop_callee(facts, loop)}`: the barriers of `prevent_cse=True` are not "
                    "needed there",
                    fix=_fix(facts, site, "False"),
                    related=stages.related_place(facts, loop.node, "the loop"),
                )
            elif choice is not None and choice.is_known:
                flag, holds = conditions.text(facts, choice.condition), choice.condition.holds
                value = conditions.negated(facts, choice.condition)
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} is the body of "
                    f"`{cse.loop_callee(facts, choice.loop)}` where `{flag}` is {holds}, and needs "
                    f"its barriers only where it is not: give `prevent_cse={value}`",
                    fix=_fix(facts, site, value),
                    related=(
                        *stages.related_place(facts, choice.loop.node, "the loop"),
                        *stages.related_place(
                            facts, choice.call.node, "called outside a loop here"
                        ),
                    ),
                )


def _loop(facts: Facts, site: Site) -> Loop | None:
    """The loop that runs a site's function, where all that does are loops that stay loops."""
    found = None
    for use in facts.site_uses(site):
        for loop in cse.running_loops(facts, use):
            if loop is None or loop.api.kind not in {"loop", "map"}:
                return None
            if loop.qualname.startswith(_RUN_AGAIN):
                return None
            if loop.arguments.dynamic or unrolling.is_unrolled(facts, loop):
                return None
            unroll = unrolling.unroll_argument(loop)
            if unroll is not None and not isinstance(unroll, ast.Constant):
                return None
            found = found or loop
    return found


def _is_run_by(facts: Facts, site: Site) -> str:
    is_body = any(use.kind == "loop" for use in facts.site_uses(site))
    return "is the body of" if is_body else "runs in"


def _fix(facts: Facts, site: Site, value: str) -> Fix | None:
    """Gives `prevent_cse` to the call or decorator that this site alone is made by."""
    if isinstance(site.node, ast.Call):
        edit = edits.set_keyword(facts.source, site.node, "prevent_cse", value)
    elif site.api.factory:  # `@eqx.filter_checkpoint`
        text = f"{ast.unparse(site.node)}(prevent_cse={value})"
        edit = edits.replace(facts.source, site.node, text)
    else:
        return None
    return Fix(f"Set `prevent_cse={value}`", (edit,), "unsafe") if edit is not None else None
