from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Fix, Violation
from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import conditions, cse
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.uses import PLAIN
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use


class CseAllowedOutsideLoop(Rule):
    """`prevent_cse=False` where no staged loop separates the forward from the backward pass.

    ## What it does
    Finds a literal `prevent_cse=False` whose function is called in a Python `for` loop, or in
    straight-line code that is visibly differentiated, with no `lax.scan` or other staged loop or
    branch on the way; also where a switch decides between a staged loop and such calls. And a
    `prevent_cse=scan_layers` that is the wrong way round.

    A loop that is unrolled completely is none: one with `unroll=True`, an `unroll` of at least the
    length, or a length of 1, also where a switch decides that, as in `unroll=n if unroll_layers
    else 1`. The default of a parameter counts, as in `unroll: int = 100`, where no visible caller
    gives another value.

    ## Why is this bad?
    Under `jax.jit` the compiler then sees the forward pass and its recomputation side by side,
    finds that they are the same, and merges them. The compiled program keeps what it would keep without
    the checkpoint: the same FLOPs and the same memory.

    ## Use instead
    The default, `prevent_cse=True`; or a `lax.scan` over the layers, where False is right, with an
    unrolling that leaves a loop: `unroll=2`.

    ## When is this fine?
    In the body of a staged loop that the rule does not see, such as a function that another project
    gives to `lax.scan`; and where nothing is ever jitted, where it makes no difference.

    ## Is the fix safe?
    No: it removes the argument, or sets it by the switch, so that the compiled program recomputes,
    as was meant.
    """

    code = "JXR401"
    name = "cse-allowed-outside-loop"
    severity = "warning"
    why = "Under `jax.jit` XLA merges the recomputation with the forward pass."
    help = "leave `prevent_cse` out, or run the layers with `jax.lax.scan`"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                for w in ws:
                    x = jax.checkpoint(layer, prevent_cse=False)(w, x)  # !
                return jnp.sum(x**2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                for w in ws:
                    x = jax.checkpoint(layer)(w, x)
                return jnp.sum(x**2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """,
        ),
    )
    good = (
        Example(  # the default
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                for w in ws:
                    x = jax.checkpoint(layer)(w, x)
                return jnp.sum(x**2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            value = site.keyword("prevent_cse")
            if value is None or site.api.loop:
                continue
            if cse.false_prevent_cse(facts, site) is None:
                found = self._turned_round(facts, site, value)
            else:
                found = (
                    self._everywhere(facts, site, value)
                    or self._chosen(facts, site, value)
                    or self._unrolled(facts, site, value)
                )
            if found is not None:
                yield found

    def _everywhere(self, facts: Facts, site: Site, value: ast.expr) -> Violation | None:
        call = _unprotected(facts, site)
        if call is None:
            return None
        return self.report(
            facts,
            site.node,
            f"{stages.site_text(facts, site)} with `prevent_cse=False` is called outside a "
            "staged loop: under `jax.jit` the recomputation is merged away",
            fix=cse.without_prevent_cse(facts, site, value),
            related=stages.related_place(facts, call.node, "called here"),
        )

    def _chosen(self, facts: Facts, site: Site, value: ast.expr) -> Violation | None:
        choice = cse.only_if(facts, site)
        if choice is None or not _runs_backward(facts, choice.call):
            return None
        flag, holds = conditions.text(facts, choice.condition), choice.condition.holds
        wanted = conditions.negated(facts, choice.condition)
        message = (
            f"{stages.site_text(facts, site)} with `prevent_cse=False` is called outside a staged "
            f"loop where `{flag}` is {not holds}: under `jax.jit` the recomputation is merged away"
        )
        related = stages.related_place(facts, choice.call.node, "called here")
        if not choice.is_known:
            help = f"make the checkpoint where `{flag}` is known, with `prevent_cse={wanted}`"
            return self.report(facts, site.node, message, help=help, related=related)
        return self.report(
            facts,
            site.node,
            f"{message}, give `prevent_cse={wanted}`",
            fix=_set(facts, value, wanted),
            related=related,
        )

    def _unrolled(self, facts: Facts, site: Site, value: ast.expr) -> Violation | None:
        unrolled = cse.enclosing_unrolled_loop(facts, site)
        if unrolled is None:
            return None
        loop, condition = unrolled
        where = ""
        if condition is not None:
            where = f" where `{conditions.text(facts, condition)}` is {condition.holds}"
        return self.report(
            facts,
            site.node,
            f"{stages.site_text(facts, site)} with `prevent_cse=False` runs in "
            f"`{cse.loop_callee(facts, loop)}`, which is unrolled completely{where}: under `jax.jit` the "
            "recomputation is merged away",
            fix=cse.without_prevent_cse(facts, site, value),
            related=stages.related_place(facts, loop.node, "unrolled here"),
            why="The loop that keeps the recomputation apart from the forward pass is gone.",
            help="leave `prevent_cse` out, or unroll less",
        )

    def _turned_round(self, facts: Facts, site: Site, value: ast.expr) -> Violation | None:
        """Report `prevent_cse=scan` where `not scan` is right."""
        choice = cse.only_if(facts, site)
        if choice is None or not choice.is_known or not _runs_backward(facts, choice.call):
            return None
        given, asked = conditions.plain(value, True), choice.condition
        if given.holds != asked.holds or ast.dump(given.test) != ast.dump(asked.test):
            return None
        wanted = conditions.negated(facts, asked)
        return self.report(
            facts,
            site.node,
            f"{stages.site_text(facts, site)} has the barriers of "
            f"`prevent_cse={ast.unparse(value)}` in the staged loop, and none where it is called "
            f"outside one: give `prevent_cse={wanted}`",
            fix=_set(facts, value, wanted),
            related=stages.related_place(facts, choice.call.node, "called outside a loop here"),
        )


def _set(facts: Facts, value: ast.expr, wanted: str) -> Fix:
    edit = edits.replace(facts.source, value, wanted)
    return Fix(f"Set `prevent_cse={wanted}`", (edit,), "unsafe")


def _unprotected(facts: Facts, site: Site) -> Use | None:
    """A call of a site's function in differentiated code, or in a Python loop over layers, where no
    use of it is, or may be, in a staged loop or branch.
    """
    found = None
    for use in facts.site_uses(site):
        if use.kind != "call" or not PLAIN.issuperset(use.through):
            return None
        context = facts.context(use.node)
        if context.loop or context.branch or context.rule or context.unknown:
            return None
        if context.checkpoint:
            return None  # cse-allowed-in-nested-checkpoint
        if context.reverse or context.python_loop:
            found = found or use
    return found


def _runs_backward(facts: Facts, use: Use) -> bool:
    """Whether a call is in differentiated code, or in a Python loop, and in no staged loop."""
    context = facts.context(use.node)
    if context.loop or context.branch or context.rule or context.unknown or context.checkpoint:
        return False
    return context.reverse or context.python_loop
