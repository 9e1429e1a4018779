from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import cse
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Loop

_HEAD = "import jax\nimport jax.numpy as jnp\n\n\n"
_STEP = "def step(x, w):\n    return jnp.sin(jnp.tanh(x @ w) @ w), None\n\n\n"


class CseAllowedInUnrolledScan(Rule):
    """`prevent_cse=False` in the body of a scan that is unrolled completely.

    ## What it does
    Finds a literal `prevent_cse=False` whose function is, or is called in, the body of a loop with
    `unroll=True`, an `unroll` of at least the length, or a length of 1.

    ## Why is this bad?
    In a loop `prevent_cse=False` is right, because the forward and the backward loop are apart.
    Unrolled completely there is no loop: under `jax.jit` XLA merges the recomputation with the
    forward pass, and a loop of length 1 is removed too.

    ## Use instead
    The default, `prevent_cse=True`, or an unrolling that leaves a loop: `unroll=2`.

    ## When it is right after all
    Where an outer loop that the rule does not see runs the whole.

    ## Is the fix safe?
    No: it removes the argument, so that the compiled program recomputes, as was meant.
    """

    code = "JXR402"
    name = "cse-allowed-in-unrolled-scan"
    severity = "warning"
    why = "Nothing is left of the loop that keeps the recomputation apart from the forward pass."
    help = "leave `prevent_cse` out, or unroll less"
    fixes = "unsafe"
    bad = (
        Example(
            f"{_HEAD}{_STEP}def loss(ws, x):\n"
            "    body = jax.checkpoint(step, prevent_cse=False)  # !\n"
            "    return jnp.sum(jax.lax.scan(body, x, ws, unroll=True)[0])\n",
            fixed=f"{_HEAD}{_STEP}def loss(ws, x):\n    body = jax.checkpoint(step)\n"
            "    return jnp.sum(jax.lax.scan(body, x, ws, unroll=True)[0])\n",
        ),
        Example(
            "from functools import partial\n\nimport jax.numpy as jnp\nfrom jax import lax, remat\n"
            "\n\n@partial(remat, prevent_cse=False)  # !\n"
            "def layer(w, x):\n    return jnp.sin(jnp.tanh(x @ w) @ w)\n\n\n"
            "def loss(ws, x):\n    def body(i, x):\n        return layer(ws[i], x)\n\n"
            "    return jnp.sum(lax.fori_loop(0, 1, body, x))\n",
            fixed="from functools import partial\n\nimport jax.numpy as jnp\n"
            "from jax import lax, remat\n\n\n@remat\n"
            "def layer(w, x):\n    return jnp.sin(jnp.tanh(x @ w) @ w)\n\n\n"
            "def loss(ws, x):\n    def body(i, x):\n        return layer(ws[i], x)\n\n"
            "    return jnp.sum(lax.fori_loop(0, 1, body, x))\n",
        ),
        Example(
            "import flax.linen as nn\nimport jax.numpy as jnp\n\n\n"
            "class Block(nn.Module):\n    @nn.compact\n    def __call__(self, x, _):\n"
            "        return jnp.sin(nn.Dense(x.shape[-1])(jnp.tanh(x))), None\n\n\n"
            "class Model(nn.Module):\n    @nn.compact\n    def __call__(self, x):\n"
            "        stack = nn.scan(\n"
            "            nn.remat(Block, prevent_cse=False),  # !\n"
            '            variable_axes={"params": 0},\n'
            '            split_rngs={"params": True},\n'
            "            length=4,\n            unroll=4,\n        )\n"
            "        return stack()(x, None)[0]\n",
            fixed="import flax.linen as nn\nimport jax.numpy as jnp\n\n\n"
            "class Block(nn.Module):\n    @nn.compact\n    def __call__(self, x, _):\n"
            "        return jnp.sin(nn.Dense(x.shape[-1])(jnp.tanh(x))), None\n\n\n"
            "class Model(nn.Module):\n    @nn.compact\n    def __call__(self, x):\n"
            "        stack = nn.scan(\n"
            "            nn.remat(Block),\n"
            '            variable_axes={"params": 0},\n'
            '            split_rngs={"params": True},\n'
            "            length=4,\n            unroll=4,\n        )\n"
            "        return stack()(x, None)[0]\n",
        ),
    )
    good = (
        Example(
            f"{_HEAD}{_STEP}def loss(ws, x):\n"
            "    body = jax.checkpoint(step, prevent_cse=False)\n"
            "    return jnp.sum(jax.lax.scan(body, x, ws, unroll=2)[0])\n"
        ),
        Example(
            f"{_HEAD}{_STEP}def loss(ws, x):\n"
            "    body = jax.checkpoint(step)\n"
            "    return jnp.sum(jax.lax.scan(body, x, ws, unroll=True)[0])\n"
        ),
        Example(
            f"{_HEAD}{_STEP}def loss(ws, x, unroll):\n"
            "    body = jax.checkpoint(step, prevent_cse=not unroll)\n"
            "    return jnp.sum(jax.lax.scan(body, x, ws, unroll=unroll)[0])\n"
        ),
        Example(
            f"{_HEAD}{_STEP}def loss(ws, x, unroll=True):\n"
            "    body = jax.checkpoint(step, prevent_cse=False)\n"
            "    return jnp.sum(jax.lax.scan(body, x, ws, unroll=unroll)[0])\n"
        ),
        Example(  # an outer loop keeps the passes apart
            f"{_HEAD}{_STEP}def group(x, ws):\n"
            "    body = jax.checkpoint(step, prevent_cse=False)\n"
            "    return jax.lax.scan(body, x, ws, unroll=True)[0], None\n\n\n"
            "def loss(ws, x):\n    return jnp.sum(jax.lax.scan(group, x, ws)[0])\n"
        ),
        Example(  # used by a real loop as well
            f"{_HEAD}{_STEP}def loss(ws, x):\n"
            "    body = jax.checkpoint(step, prevent_cse=False)\n"
            "    x, _ = jax.lax.scan(body, x, ws[:1], length=1)\n"
            "    return jnp.sum(jax.lax.scan(body, x, ws[1:])[0])\n"
        ),
        Example(
            f"{_HEAD}{_STEP}def loss(ws, x, **options):\n"
            "    body = jax.checkpoint(step, prevent_cse=False)\n"
            "    return jnp.sum(jax.lax.scan(body, x, ws, **options)[0])\n"
        ),
        Example(
            f"{_HEAD}{_STEP}def loss(ws, x):\n"
            "    body = jax.checkpoint(step, prevent_cse=False)\n"
            "    return jnp.sum(jax.lax.scan(body, x, ws, length=12, unroll=4)[0])\n"
        ),
        Example(  # another library's
            f"from mylib import scan\n\n{_HEAD}{_STEP}def loss(ws, x):\n"
            "    body = jax.checkpoint(step, prevent_cse=False)\n"
            "    return jnp.sum(scan(body, x, ws, unroll=True)[0])\n"
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            value = cse.allowed(facts, site)
            loop = cse.unrolled_around(facts, site) if value is not None else None
            if value is None or loop is None:
                continue
            yield self.report(
                facts,
                site.node,
                f"{stages.spelled(facts, site)} with `prevent_cse=False` runs in "
                f"`{_spelled(loop)}`, which is unrolled completely: under `jax.jit` the "
                "recomputation is merged away",
                fix=cse.drop(facts, site, value),
                related=stages.at(facts, loop.node, "unrolled here"),
            )


def _spelled(loop: Loop) -> str:
    node = loop.node.func if isinstance(loop.node, ast.Call) else loop.node
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else "the loop"
