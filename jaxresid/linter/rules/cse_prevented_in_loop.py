from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import cse
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Loop, Site


class CsePreventedInLoop(Rule):
    """The body of a staged loop is checkpointed with barriers that it does not need.

    ## What it does
    Finds a checkpoint with the default `prevent_cse=True` whose function is the body of
    `lax.scan`, `lax.map`, `lax.fori_loop`, `nn.scan` and the like, and nothing else.

    ## Why is this bad?
    The loop already keeps the recomputation apart from the forward pass. The barriers that
    `prevent_cse=True` puts into the backward pass can keep the compiler from other optimizations;
    the documentation recommends False in a scan. On the CPU no difference was measured.

    ## Use instead
    `jax.checkpoint(step, prevent_cse=False)`.

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
        Example(
            """
            import jax.numpy as jnp
            from jax import checkpoint as jax_checkpoint
            from jax.lax import scan


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, remat=True):
                body = step
                if remat:
                    body = jax_checkpoint(body)  # !
                return jnp.sum(scan(body, x, ws)[0])
            """,
            fixed="""
            import jax.numpy as jnp
            from jax import checkpoint as jax_checkpoint
            from jax.lax import scan


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, remat=True):
                body = step
                if remat:
                    body = jax_checkpoint(body, prevent_cse=False)
                return jnp.sum(scan(body, x, ws)[0])
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            @jax.checkpoint  # !
            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                return jnp.sum(jax.lax.scan(step, x, ws)[0])
            """,
        ),
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp


            @functools.partial(  # !
                jax.remat,
                prevent_cse=True,
            )
            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                return jnp.sum(jax.lax.scan(step, x, ws)[0])
            """,
            fixed="""
            import functools

            import jax
            import jax.numpy as jnp


            @functools.partial(
                jax.remat,
                prevent_cse=False,
            )
            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                return jnp.sum(jax.lax.scan(step, x, ws)[0])
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
        Example(  # unrolled
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                return jnp.sum(jax.lax.scan(jax.checkpoint(step), x, ws, unroll=True)[0])
            """
        ),
        Example(  # may be unrolled
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, unroll):
                return jnp.sum(jax.lax.scan(jax.checkpoint(step), x, ws, unroll=unroll)[0])
            """
        ),
        Example(  # called outside as well
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step)
                x, _ = body(x, ws[0])
                return jnp.sum(jax.lax.scan(body, x, ws[1:])[0])
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step)
                for w in ws:
                    x, _ = body(x, w)
                return jnp.sum(x)
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, prevent_cse):
                body = jax.checkpoint(step, prevent_cse=prevent_cse)
                return jnp.sum(jax.lax.scan(body, x, ws)[0])
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, **options):
                body = jax.checkpoint(step, **options)
                return jnp.sum(jax.lax.scan(body, x, ws)[0])
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step)
                return jnp.sum(jax.lax.cond(True, body, step, x, ws)[0])
            """
        ),
        Example(  # one call of the body stands between: the loop's other work may be merged
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step)
                return jnp.sum(jax.lax.scan(lambda x, w: body(jnp.sin(x), w), x, ws)[0])
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            if site.api.loop or "prevent_cse" not in site.api.keywords:
                continue
            loop = _loop(facts, site) if facts.prevent_cse(site) is True else None
            if loop is None:
                continue
            where = loop.node.func if isinstance(loop.node, ast.Call) else loop.node
            yield self.report(
                facts,
                site.node,
                f"{stages.spelled(facts, site)} is the body of `{ast.unparse(where)}`: the "
                "barriers of `prevent_cse=True` are not needed there",
                fix=_fix(facts, site),
                related=stages.at(facts, loop.node, "the loop"),
            )


def _loop(facts: Facts, site: Site) -> Loop | None:
    """The loop whose body a site makes, where all its uses are bodies of loops that stay loops."""
    found = None
    for use in facts.site_uses(site):
        loop = cse.loop_at(facts, use.node) if use.kind == "loop" else None
        if loop is None or loop.api.kind not in {"loop", "map"}:
            return None
        unroll = loop.arguments.get(5 if loop.qualname in cse.SCANS else None, "unroll")
        if loop.arguments.dynamic or cse.is_unrolled(facts, loop):
            return None
        if unroll is not None and not isinstance(unroll, ast.Constant):
            return None
        if not cse.PLAIN.issuperset(use.through):
            return None
        found = found or loop
    return found


def _fix(facts: Facts, site: Site) -> Fix | None:
    """Gives `prevent_cse=False` to the call that this site alone is made by."""
    if not isinstance(site.node, ast.Call):
        return None
    edit = edits.set_keyword(facts.source, site.node, "prevent_cse", "False")
    return Fix("Set `prevent_cse=False`", (edit,), "unsafe") if edit is not None else None
