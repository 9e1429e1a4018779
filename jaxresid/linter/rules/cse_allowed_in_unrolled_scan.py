from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import conditions, cse
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Loop


class CseAllowedInUnrolledScan(Rule):
    """`prevent_cse=False` in the body of a scan that is unrolled completely.

    ## What it does
    Finds a literal `prevent_cse=False` whose function is, or is called in, the body of a loop with
    `unroll=True`, an `unroll` of at least the length, or a length of 1; also where a switch decides
    that, as in `unroll=n if unroll_layers else 1`. The default of a parameter counts, as in
    `unroll: int = 100`, where no visible caller gives another value.

    ## Why is this bad?
    In a loop `prevent_cse=False` is right, because the forward and the backward loop are apart.
    Unrolled completely there is no loop: under `jax.jit` XLA merges the recomputation with the
    forward pass, and a loop of length 1 is removed too.

    ## Use instead
    The default, `prevent_cse=True`, or an unrolling that leaves a loop: `unroll=2`.

    ## When is this fine?
    Where all of it runs in an outer loop that the rule does not see.

    ## Is the fix safe?
    No: it removes the argument, so that the compiled program recomputes, as was meant.
    """

    code = "JXR402"
    name = "cse-allowed-in-unrolled-scan"
    severity = "warning"
    why = "The loop that keeps the recomputation apart from the forward pass is gone."
    help = "leave `prevent_cse` out, or unroll less"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step, prevent_cse=False)  # !
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=True)[0])
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step)
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=True)[0])
            """,
        ),
        Example(
            """
            from functools import partial

            import jax.numpy as jnp
            from jax import lax, remat


            @partial(remat, prevent_cse=False)  # !
            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                def body(i, x):
                    return layer(ws[i], x)

                return jnp.sum(lax.fori_loop(0, 1, body, x))
            """,
            fixed="""
            from functools import partial

            import jax.numpy as jnp
            from jax import lax, remat


            @remat
            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                def body(i, x):
                    return layer(ws[i], x)

                return jnp.sum(lax.fori_loop(0, 1, body, x))
            """,
        ),
        Example(
            """
            import flax.linen as nn
            import jax.numpy as jnp


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x, _):
                    return jnp.sin(nn.Dense(x.shape[-1])(jnp.tanh(x))), None


            class Model(nn.Module):
                @nn.compact
                def __call__(self, x):
                    stack = nn.scan(
                        nn.remat(Block, prevent_cse=False),  # !
                        variable_axes={"params": 0},
                        split_rngs={"params": True},
                        length=4,
                        unroll=4,
                    )
                    return stack()(x, None)[0]
            """,
            fixed="""
            import flax.linen as nn
            import jax.numpy as jnp


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x, _):
                    return jnp.sin(nn.Dense(x.shape[-1])(jnp.tanh(x))), None


            class Model(nn.Module):
                @nn.compact
                def __call__(self, x):
                    stack = nn.scan(
                        nn.remat(Block),
                        variable_axes={"params": 0},
                        split_rngs={"params": True},
                        length=4,
                        unroll=4,
                    )
                    return stack()(x, None)[0]
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def run(ws, x, unroll: int = 100):
                body = jax.checkpoint(step, prevent_cse=False)  # !
                return jax.lax.scan(body, x, ws, length=6, unroll=unroll)[0]


            def loss(ws, x):
                return jnp.sum(run(ws, x))
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def run(ws, x, unroll: int = 100):
                body = jax.checkpoint(step)
                return jax.lax.scan(body, x, ws, length=6, unroll=unroll)[0]


            def loss(ws, x):
                return jnp.sum(run(ws, x))
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step, prevent_cse=False)  # !
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=ws.shape[0])[0])
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step)
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=ws.shape[0])[0])
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def run(ws, x, unroll_layers=False):
                n = len(ws)
                body = jax.checkpoint(step, prevent_cse=False)  # !
                x, _ = jax.lax.scan(body, x, ws, length=n, unroll=n if unroll_layers else 1)
                return x
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def run(ws, x, unroll_layers=False):
                n = len(ws)
                body = jax.checkpoint(step)
                x, _ = jax.lax.scan(body, x, ws, length=n, unroll=n if unroll_layers else 1)
                return x
            """,
        ),
        Example(
            """
            import flax.linen as nn


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x, _):
                    return nn.gelu(nn.Dense(8)(nn.gelu(nn.Dense(8)(x)))), None


            class Model(nn.Module):
                depth: int = 4
                scan_layers: bool = True

                @nn.compact
                def __call__(self, x):
                    stack = nn.scan(
                        nn.remat(Block, prevent_cse=False),  # !
                        variable_axes={"params": 0},
                        split_rngs={"params": True},
                        length=self.depth,
                        unroll=1 if self.scan_layers else self.depth,
                    )
                    return stack()(x, None)[0]
            """,
            fixed="""
            import flax.linen as nn


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x, _):
                    return nn.gelu(nn.Dense(8)(nn.gelu(nn.Dense(8)(x)))), None


            class Model(nn.Module):
                depth: int = 4
                scan_layers: bool = True

                @nn.compact
                def __call__(self, x):
                    stack = nn.scan(
                        nn.remat(Block),
                        variable_axes={"params": 0},
                        split_rngs={"params": True},
                        length=self.depth,
                        unroll=1 if self.scan_layers else self.depth,
                    )
                    return stack()(x, None)[0]
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
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=2)[0])
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
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=True)[0])
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, unroll):
                body = jax.checkpoint(step, prevent_cse=not unroll)
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=unroll)[0])
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, unroll=True):
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=unroll)[0])


            def gradient(ws, x, unroll):
                return jax.grad(loss)(ws, x, unroll)
            """
        ),
        Example(  # an outer loop keeps the passes apart
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def group(x, ws):
                body = jax.checkpoint(step, prevent_cse=False)
                return jax.lax.scan(body, x, ws, unroll=True)[0], None


            def loss(ws, x):
                return jnp.sum(jax.lax.scan(group, x, ws)[0])
            """
        ),
        Example(  # used by a real loop as well
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step, prevent_cse=False)
                x, _ = jax.lax.scan(body, x, ws[:1], length=1)
                return jnp.sum(jax.lax.scan(body, x, ws[1:])[0])
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, **options):
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws, **options)[0])
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
                return jnp.sum(jax.lax.scan(body, x, ws, length=12, unroll=4)[0])
            """
        ),
        Example(  # another library's
            """
            from mylib import scan

            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(scan(body, x, ws, unroll=True)[0])
            """
        ),
        Example(  # the only caller leaves a loop
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def run(ws, x, unroll: int = 100):
                body = jax.checkpoint(step, prevent_cse=False)
                return jax.lax.scan(body, x, ws, length=6, unroll=unroll)[0]


            def loss(ws, x):
                return jnp.sum(run(ws, x, unroll=1))
            """
        ),
        Example(  # the same, by position
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def run(ws, x, unroll: int = 100):
                body = jax.checkpoint(step, prevent_cse=False)
                return jax.lax.scan(body, x, ws, length=6, unroll=unroll)[0]


            def loss(ws, x):
                return jnp.sum(run(ws, x, 1))
            """
        ),
        Example(  # the caller may give it
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def run(ws, x, unroll: int = 100):
                body = jax.checkpoint(step, prevent_cse=False)
                return jax.lax.scan(body, x, ws, length=6, unroll=unroll)[0]


            def loss(ws, x, **options):
                return jnp.sum(run(ws, x, **options))
            """
        ),
        Example(  # a partial gives it
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            import functools


            def run(ws, x, unroll: int = 100):
                body = jax.checkpoint(step, prevent_cse=False)
                return jax.lax.scan(body, x, ws, length=6, unroll=unroll)[0]


            looped = functools.partial(run, unroll=1)
            """
        ),
        Example(  # there may be more than 100 layers
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, unroll: int = 100):
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=unroll)[0])
            """
        ),
        Example(  # a loop of three
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, unroll: int = 2):
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws, length=6, unroll=unroll)[0])
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, unroll: bool = False):
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws, length=6, unroll=unroll)[0])
            """
        ),
        Example(  # not the default any more
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, unroll: int = 100):
                unroll = min(unroll, 2)
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws, length=6, unroll=unroll)[0])
            """
        ),
        Example(  # the width
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x):
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=ws.shape[1])[0])
            """
        ),
        Example(  # the length of something else
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, others, x):
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws, unroll=len(others))[0])
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, layers, unroll=None):
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws, length=layers, unroll=unroll)[0])
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def loss(ws, x, layers):
                body = jax.checkpoint(step, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws, length=layers, unroll=layers // 2)[0])
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            class Model:
                def run(self, ws, x, unroll=6):
                    body = jax.checkpoint(step, prevent_cse=False)
                    return jax.lax.scan(body, x, ws, length=6, unroll=unroll)[0]

                def loss(self, ws, x):
                    return jnp.sum(self.run(ws, x, 1))
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def run(ws, x, unroll=6):
                body = jax.checkpoint(step, prevent_cse=False)
                return jax.lax.scan(body, x, ws, length=6, unroll=unroll)[0]


            def loss(arguments):
                return jnp.sum(run(*arguments))
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def step(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def run(ws, x, fast=False):
                body = jax.checkpoint(step, prevent_cse=False)
                return jax.lax.scan(body, x, ws, length=6, unroll=3 if fast else 1)[0]
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            value = cse.false_prevent_cse(facts, site)
            found = cse.enclosing_unrolled_loop(facts, site) if value is not None else None
            if value is None or found is None:
                continue
            loop, condition = found
            where = ""
            if condition is not None:
                where = f" where `{conditions.text(facts, condition)}` is {condition.holds}"
            yield self.report(
                facts,
                site.node,
                f"{stages.site_text(facts, site)} with `prevent_cse=False` runs in "
                f"`{_spelled(loop)}`, which is unrolled completely{where}: under `jax.jit` the "
                "recomputation is merged away",
                fix=cse.without_prevent_cse(facts, site, value),
                related=stages.related_place(facts, loop.node, "unrolled here"),
            )


def _spelled(loop: Loop) -> str:
    node = loop.node.func if isinstance(loop.node, ast.Call) else loop.node
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else "the loop"
