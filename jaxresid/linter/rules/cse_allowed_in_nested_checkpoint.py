from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import cse
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_HEAD = "import jax\nimport jax.numpy as jnp\n\n\n"
_LAYER = "def layer(w, x):\n    return jnp.sin(jnp.tanh(x @ w) @ w)\n\n\n"


class CseAllowedInNestedCheckpoint(Rule):
    """`prevent_cse=False` on a checkpoint inside another checkpointed function.

    ## What it does
    Finds a literal `prevent_cse=False` whose function is called in a function that is checkpointed
    itself, with no staged loop or branch in between.

    ## Why is this bad?
    The backward pass of the outer function recomputes its forward pass, inner functions included,
    and the inner ones recompute once more, in the same computation. Under `jax.jit` XLA merges the
    two, and the inner checkpoints might as well not be there. A loop around the outer one does not
    change that: it separates only the outer checkpoint from its forward pass. The newer
    implementation (`jax_remat3`) keeps the two apart.

    ## Use instead
    The default, `prevent_cse=True`, for the inner ones; False at most for the outer one.

    ## When it is right after all
    Where the inner function is the body of a loop inside the outer one: the rule is silent there.
    Where `jax_remat3` is on.

    ## Is the fix safe?
    No: it removes the argument, so that the compiled program recomputes, as was meant.
    """

    code = "JXR403"
    name = "cse-allowed-in-nested-checkpoint"
    severity = "warning"
    why = "XLA merges the inner recomputation with the outer one, which runs beside it."
    help = "leave `prevent_cse` out for the inner checkpoint"
    fixes = "unsafe"
    bad = (
        Example(
            f"{_HEAD}{_LAYER}def pair(x, ws):\n"
            "    inner = jax.checkpoint(layer, prevent_cse=False)  # !\n"
            "    for w in ws:\n        x = inner(w, x)\n    return x, None\n\n\n"
            "def loss(ws, x):\n    body = jax.checkpoint(pair, prevent_cse=False)\n"
            "    return jnp.sum(jax.lax.scan(body, x, ws)[0])\n",
            fixed=f"{_HEAD}{_LAYER}def pair(x, ws):\n"
            "    inner = jax.checkpoint(layer)\n"
            "    for w in ws:\n        x = inner(w, x)\n    return x, None\n\n\n"
            "def loss(ws, x):\n    body = jax.checkpoint(pair, prevent_cse=False)\n"
            "    return jnp.sum(jax.lax.scan(body, x, ws)[0])\n",
        ),
        Example(
            "import functools\n\nimport jax\nimport jax.numpy as jnp\nfrom jax import remat\n\n\n"
            "@functools.partial(remat, prevent_cse=False)  # !\n"
            "def layer(w, x):\n    return jnp.sin(jnp.tanh(x @ w) @ w)\n\n\n"
            "def pair(ws, x):\n    return layer(ws[1], layer(ws[0], x))\n\n\n"
            "@jax.checkpoint\ndef stage(ws, x):\n    return jnp.tanh(pair(ws, x))\n\n\n"
            "def loss(ws, x):\n    return jnp.sum(stage(ws[1], stage(ws[0], x)))\n",
            fixed="import functools\n\nimport jax\nimport jax.numpy as jnp\nfrom jax import remat"
            "\n\n\n@remat\n"
            "def layer(w, x):\n    return jnp.sin(jnp.tanh(x @ w) @ w)\n\n\n"
            "def pair(ws, x):\n    return layer(ws[1], layer(ws[0], x))\n\n\n"
            "@jax.checkpoint\ndef stage(ws, x):\n    return jnp.tanh(pair(ws, x))\n\n\n"
            "def loss(ws, x):\n    return jnp.sum(stage(ws[1], stage(ws[0], x)))\n",
        ),
    )
    good = (
        Example(  # the default inside, False outside
            f"{_HEAD}{_LAYER}def pair(x, ws):\n"
            "    inner = jax.checkpoint(layer)\n"
            "    for w in ws:\n        x = inner(w, x)\n    return x, None\n\n\n"
            "def loss(ws, x):\n    body = jax.checkpoint(pair, prevent_cse=False)\n"
            "    return jnp.sum(jax.lax.scan(body, x, ws)[0])\n"
        ),
        Example(  # a loop in between
            f"{_HEAD}{_LAYER}@jax.checkpoint\ndef stage(ws, x):\n"
            "    inner = jax.checkpoint(layer, prevent_cse=False)\n"
            "    return jax.lax.scan(lambda x, w: (inner(w, x), None), x, ws)[0]\n"
        ),
        Example(  # the same
            f"{_HEAD}{_LAYER}@jax.checkpoint\ndef stage(ws, x):\n"
            "    @jax.checkpoint\n    def outer(x):\n"
            "        inner = jax.checkpoint(layer, prevent_cse=False)\n"
            "        return jax.lax.fori_loop(0, 4, lambda i, x: inner(ws[i], x), x)\n\n"
            "    return outer(x)\n"
        ),
        Example(  # the outer one is optional
            f"{_HEAD}{_LAYER}def run(ws, x, twice):\n"
            "    inner = jax.checkpoint(layer, prevent_cse=False)\n\n"
            "    def stage(x, w):\n        return inner(w, x), None\n\n"
            "    body = jax.checkpoint(stage) if twice else stage\n"
            "    return jax.lax.scan(body, x, ws)\n"
        ),
        Example(  # also called outside the outer one, in a scan
            f"{_HEAD}{_LAYER}inner = jax.checkpoint(layer, prevent_cse=False)\n\n\n"
            "@jax.checkpoint\ndef stage(ws, x):\n    return inner(ws[1], inner(ws[0], x))\n\n\n"
            "def run(ws, x):\n"
            "    return jax.lax.scan(lambda x, w: (inner(w, x), None), stage(ws, x), ws)\n"
        ),
        Example(  # siblings
            f"{_HEAD}{_LAYER}def loss(ws, x):\n"
            "    one = jax.checkpoint(layer, prevent_cse=False)\n"
            "    two = jax.checkpoint(layer)\n    return two(ws, one(ws, x))\n"
        ),
        Example(  # decided elsewhere
            f"{_HEAD}{_LAYER}def make(flag):\n    @jax.checkpoint\n    def stage(ws, x):\n"
            "        return jax.checkpoint(layer, prevent_cse=flag)(ws[0], x)\n\n    return stage\n"
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            value = cse.allowed(facts, site)
            outer = cse.checkpoint_around(facts, site) if value is not None else None
            if value is None or outer is None:
                continue
            yield self.report(
                facts,
                site.node,
                f"{stages.spelled(facts, site)} with `prevent_cse=False` stands inside "
                f"{stages.spelled(facts, outer)}: under `jax.jit` its recomputation is merged "
                "with that of the outer one",
                fix=cse.drop(facts, site, value),
                related=stages.at(facts, outer.node, "the outer checkpoint"),
            )
