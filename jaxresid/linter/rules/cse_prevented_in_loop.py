from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import cse, unrolling
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.uses import PLAIN
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Loop, Site


class CsePreventedInLoop(Rule):
    """The body of a staged loop is checkpointed with barriers that it does not need.

    ## What it does
    Finds a checkpoint with the default `prevent_cse=True` whose function is the body of
    `lax.scan`, `lax.map`, `lax.fori_loop`, `nn.scan` and the like, and nothing else; or that one
    arm of an `if` scans and the other calls layer by layer.

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
        Example(
            """
            import flax.linen as nn


            class Trunk(nn.Module):
                cfg: dict
                block: type

                @nn.compact
                def __call__(self, x):
                    block = nn.remat(self.block)  # !
                    if self.cfg.scan_layers:
                        layers = nn.scan(block, {"params": 0}, length=self.cfg.depth)
                        x, _ = layers(self.cfg)(x, None)
                    else:
                        for _ in range(self.cfg.depth):
                            x, _ = block(self.cfg)(x, None)
                    return x
            """,
            fixed="""
            import flax.linen as nn


            class Trunk(nn.Module):
                cfg: dict
                block: type

                @nn.compact
                def __call__(self, x):
                    block = nn.remat(self.block, prevent_cse=not self.cfg.scan_layers)
                    if self.cfg.scan_layers:
                        layers = nn.scan(block, {"params": 0}, length=self.cfg.depth)
                        x, _ = layers(self.cfg)(x, None)
                    else:
                        for _ in range(self.cfg.depth):
                            x, _ = block(self.cfg)(x, None)
                    return x
            """,
        ),
        Example(
            """
            import jax


            def layer(x, w):
                return jax.nn.gelu(jax.nn.gelu(x @ w) @ w), None


            def trunk(ws, x, unrolled):
                body = jax.checkpoint(layer, prevent_cse=True)  # !
                if not unrolled:
                    return jax.lax.scan(body, x, ws)[0]
                for w in ws:
                    x, _ = body(x, w)
                return x
            """,
            fixed="""
            import jax


            def layer(x, w):
                return jax.nn.gelu(jax.nn.gelu(x @ w) @ w), None


            def trunk(ws, x, unrolled):
                body = jax.checkpoint(layer, prevent_cse=unrolled)
                if not unrolled:
                    return jax.lax.scan(body, x, ws)[0]
                for w in ws:
                    x, _ = body(x, w)
                return x
            """,
        ),
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp


            def loss(ws, x):
                @functools.partial(jax.lax.scan, init=x, xs=ws)
                @jax.checkpoint  # !
                def carried(x, w):
                    return jnp.sin(jnp.tanh(x @ w) @ w), None

                return jnp.sum(carried[0])
            """,
        ),
    )
    good = (
        Example(
            """
            import flax.linen as nn


            class Trunk(nn.Module):
                cfg: dict
                block: type

                @nn.compact
                def __call__(self, x):
                    block = nn.remat(self.block, prevent_cse=not self.cfg.scan_layers)
                    if self.cfg.scan_layers:
                        x, _ = nn.scan(block, {"params": 0}, length=4)(self.cfg)(x, None)
                    else:
                        x, _ = block(self.cfg)(x, None)
                    return x
            """
        ),
        Example(  # called beside the loop, not in its place
            """
            import jax


            def layer(x, w):
                return jax.nn.gelu(jax.nn.gelu(x @ w) @ w), None


            def trunk(ws, x, deep):
                body = jax.checkpoint(layer)
                x, _ = body(x, ws[0])
                if deep:
                    x, _ = jax.lax.scan(body, x, ws[1:])
                return x
            """
        ),
        Example(  # the flag is not known where the checkpoint is made
            """
            import jax


            def layer(x, w):
                return jax.nn.gelu(jax.nn.gelu(x @ w) @ w), None


            body = jax.checkpoint(layer)


            def trunk(ws, x, unrolled):
                if not unrolled:
                    return jax.lax.scan(body, x, ws)[0]
                for w in ws:
                    x, _ = body(x, w)
                return x
            """
        ),
        Example(
            """
            import jax


            def layer(x, w):
                return jax.nn.gelu(jax.nn.gelu(x @ w) @ w), None


            def trunk(ws, x, scan, give):
                body = jax.checkpoint(layer)
                if scan:
                    return jax.lax.scan(body, x, ws)[0]
                return give(body, ws, x)
            """
        ),
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
            if facts.prevent_cse(site) is not True:
                continue
            loop = _loop(facts, site)
            choice = cse.only_if(facts, site) if loop is None else None
            if loop is not None:
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} is the body of "
                    f"`{cse.loop_callee(facts, loop)}`: the barriers of `prevent_cse=True` are not "
                    "needed there",
                    fix=_fix(facts, site, "False"),
                    related=stages.related_place(facts, loop.node, "the loop"),
                )
            elif choice is not None:
                loop, call, test, holds = choice
                flag = ast.unparse(test)
                value = f"not {flag}" if holds else flag
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} is the body of "
                    f"`{cse.loop_callee(facts, loop)}` where `{flag}` is {holds}, and needs its "
                    f"barriers only where it is not: give `prevent_cse={value}`",
                    fix=_fix(facts, site, value),
                    related=(
                        *stages.related_place(facts, loop.node, "the loop"),
                        *stages.related_place(facts, call.node, "called outside a loop here"),
                    ),
                )


def _loop(facts: Facts, site: Site) -> Loop | None:
    """The loop whose body a site makes, where all its uses are bodies of loops that stay loops."""
    found = None
    for use in facts.site_uses(site):
        if "derived" in use.through:
            continue  # what a decorator above made of it
        loop = cse.loop_at(facts, use.node) if use.kind == "loop" else None
        if loop is None or loop.api.kind not in {"loop", "map"}:
            return None
        unroll = loop.arguments.get(5 if loop.qualname in unrolling.SCANS else None, "unroll")
        if loop.arguments.dynamic or unrolling.is_unrolled(facts, loop):
            return None
        if unroll is not None and not isinstance(unroll, ast.Constant):
            return None
        if not PLAIN.issuperset(use.through):
            return None
        found = found or loop
    return found


def _fix(facts: Facts, site: Site, value: str) -> Fix | None:
    """Gives `prevent_cse` to the call that this site alone is made by."""
    if not isinstance(site.node, ast.Call):
        return None
    edit = edits.set_keyword(facts.source, site.node, "prevent_cse", value)
    return Fix(f"Set `prevent_cse={value}`", (edit,), "unsafe") if edit is not None else None
