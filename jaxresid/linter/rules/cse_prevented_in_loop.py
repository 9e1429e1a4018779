from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import conditions, cse, unrolling
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Fix, Violation

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
        Example(
            """
            import equinox as eqx
            import jax


            class Net(eqx.Module):
                stacked: eqx.Module

                def __call__(self, x):
                    weights, static = eqx.partition(self.stacked, eqx.is_array)

                    def step(x, weights):
                        layer = eqx.combine(weights, static)
                        return eqx.filter_checkpoint(layer)(x), None  # !

                    @eqx.filter_checkpoint  # !
                    def again(x, weights):
                        return eqx.combine(weights, static)(x), None

                    x, _ = jax.lax.scan(step, x, weights)
                    return jax.lax.scan(again, x, weights)[0]
            """,
            fixed="""
            import equinox as eqx
            import jax


            class Net(eqx.Module):
                stacked: eqx.Module

                def __call__(self, x):
                    weights, static = eqx.partition(self.stacked, eqx.is_array)

                    def step(x, weights):
                        layer = eqx.combine(weights, static)
                        return eqx.filter_checkpoint(layer, prevent_cse=False)(x), None

                    @eqx.filter_checkpoint(prevent_cse=False)
                    def again(x, weights):
                        return eqx.combine(weights, static)(x), None

                    x, _ = jax.lax.scan(step, x, weights)
                    return jax.lax.scan(again, x, weights)[0]
            """,
        ),
        Example(
            """
            from flax import nnx


            class Block(nnx.Module):
                def __init__(self, rngs):
                    self.up = nnx.Linear(8, 32, rngs=rngs)
                    self.down = nnx.Linear(32, 8, rngs=rngs)

                def __call__(self, x):
                    return x + self.down(nnx.gelu(self.up(x)))


            class Net(nnx.Module):
                def __init__(self, rngs):
                    self.blocks = nnx.vmap(Block, in_axes=0)(rngs.fork(split=3))

                def __call__(self, x):
                    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
                    @nnx.remat  # !
                    def forward(block, x):
                        return block(x)

                    return forward(self.blocks, x)
            """,
            fixed="""
            from flax import nnx


            class Block(nnx.Module):
                def __init__(self, rngs):
                    self.up = nnx.Linear(8, 32, rngs=rngs)
                    self.down = nnx.Linear(32, 8, rngs=rngs)

                def __call__(self, x):
                    return x + self.down(nnx.gelu(self.up(x)))


            class Net(nnx.Module):
                def __init__(self, rngs):
                    self.blocks = nnx.vmap(Block, in_axes=0)(rngs.fork(split=3))

                def __call__(self, x):
                    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
                    @nnx.remat(prevent_cse=False)
                    def forward(block, x):
                        return block(x)

                    return forward(self.blocks, x)
            """,
        ),
        Example(
            """
            import haiku as hk
            import jax


            def layer(x):
                return x + hk.Linear(8)(jax.nn.gelu(hk.Linear(32)(x)))


            def net(x):
                stack = hk.experimental.layer_stack(3)
                return stack(hk.remat(layer))(x)  # !
            """,
            fixed="""
            import haiku as hk
            import jax


            def layer(x):
                return x + hk.Linear(8)(jax.nn.gelu(hk.Linear(32)(x)))


            def net(x):
                stack = hk.experimental.layer_stack(3)
                return stack(hk.remat(layer, prevent_cse=False))(x)
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
        Example(  # the outer checkpoint of the same step recomputes as well
            """
            from functools import partial

            import jax
            import jax.numpy as jnp


            def half(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            @partial(jax.checkpoint, prevent_cse=False)
            def step(x, w):
                return jax.checkpoint(half)(jax.checkpoint(half)(x, w), w), None


            def loss(ws, x):
                return jnp.sum(jax.lax.scan(step, x, ws)[0])
            """
        ),
        Example(  # the step takes a gradient itself
            """
            import jax
            import jax.numpy as jnp


            def layer(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def step(w, x):
                def loss(w):
                    return jnp.sum(jax.checkpoint(layer)(x, w))

                return w - jax.grad(loss)(w), None


            def train(w, xs):
                return jax.lax.scan(step, w, xs)[0]
            """
        ),
        Example(  # a stack of one layer is no loop, nor is one that is unrolled
            """
            import haiku as hk
            import jax


            def layer(x):
                return jax.nn.gelu(hk.Linear(8)(jax.nn.gelu(hk.Linear(8)(x))))


            def net(x, unroll):
                x = hk.layer_stack(1)(hk.remat(layer))(x)
                x = hk.layer_stack(3, unroll=3)(hk.remat(layer))(x)
                return hk.layer_stack(3, unroll=unroll)(hk.remat(layer))(x)
            """
        ),
        Example(  # called outside the loop's body too
            """
            import equinox as eqx
            import jax


            class Net(eqx.Module):
                stacked: eqx.Module

                def __call__(self, x):
                    weights, static = eqx.partition(self.stacked, eqx.is_array)

                    def step(x, weights):
                        return eqx.filter_checkpoint(eqx.combine(weights, static))(x), None

                    x, _ = step(x, jax.tree.map(lambda w: w[0], weights))
                    return jax.lax.scan(step, x, weights)[0]
            """
        ),
        Example(  # a loop that runs each step forward again before it goes back
            """
            import equinox.internal as eqxi
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                return jnp.sum(eqxi.scan(jax.checkpoint(step), x, ws, kind="checkpointed")[0])
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
