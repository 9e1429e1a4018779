from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import cse
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use

_LAYER = "def layer(w, x):\n    return jnp.sin(jnp.tanh(x @ w) @ w)\n\n\n"
_STEP = "\n\ndef step(ws, x):\n    return jax.value_and_grad(loss)(ws, x)\n"


class CseAllowedOutsideLoop(Rule):
    """`prevent_cse=False` where no staged loop separates the forward from the backward pass.

    ## What it does
    Finds a literal `prevent_cse=False` whose function is called in a Python `for` loop, or in
    straight-line code that is visibly differentiated, with no `lax.scan` or other staged loop or
    branch on the way.

    ## Why is this bad?
    Under `jax.jit` the compiler then sees the forward pass and its recomputation side by side, finds
    that they are the same, and merges them. The compiled program keeps what it would keep without
    the checkpoint: the same FLOPs and the same memory.

    ## Use instead
    The default, `prevent_cse=True`; or a `lax.scan` over the layers, where False is right.

    ## When it is right after all
    In the body of a staged loop that the rule does not see, such as a function that another project
    gives to `lax.scan`; and where nothing is ever jitted, where it makes no difference.

    ## Is the fix safe?
    No: it removes the argument, so that the compiled program recomputes, as was meant.
    """

    code = "JXR401"
    name = "cse-allowed-outside-loop"
    severity = "warning"
    why = "Under `jax.jit` XLA merges the recomputation with the forward pass."
    help = "leave `prevent_cse` out, or run the layers by `jax.lax.scan`"
    fixes = "unsafe"
    bad = (
        Example(
            f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def loss(ws, x):\n    for w in ws:\n"
            "        x = jax.checkpoint(layer, prevent_cse=False)(w, x)  # !\n"
            f"    return jnp.sum(x**2)\n{_STEP}",
            fixed=f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def loss(ws, x):\n    for w in ws:\n"
            "        x = jax.checkpoint(layer)(w, x)\n"
            f"    return jnp.sum(x**2)\n{_STEP}",
        ),
        Example(
            "import functools\n\nimport jax\nimport jax.numpy as jnp\n\n\n"
            "@functools.partial(jax.checkpoint, prevent_cse=False)  # !\n"
            f"{_LAYER}def trunk(ws, x):\n    for w in ws:\n        x = layer(w, x)\n"
            "    return x\n\n\n"
            f"def loss(ws, x):\n    return jnp.sum(trunk(ws, x) ** 2)\n{_STEP}",
            fixed="import functools\n\nimport jax\nimport jax.numpy as jnp\n\n\n"
            "@jax.checkpoint\n"
            f"{_LAYER}def trunk(ws, x):\n    for w in ws:\n        x = layer(w, x)\n"
            "    return x\n\n\n"
            f"def loss(ws, x):\n    return jnp.sum(trunk(ws, x) ** 2)\n{_STEP}",
        ),
        Example(
            "import jax\nimport jax.numpy as jnp\nfrom jax import remat as ckpt\n\n\n"
            f"{_LAYER}def step(ws, x):\n"
            "    block = ckpt(\n        layer,\n"
            "        policy=jax.checkpoint_policies.dots_saveable,\n"
            "        prevent_cse=False,  # the docs say so\n    )\n\n"
            "    def loss(ws):\n        h = block(ws[0], x)\n        h = jax.jit(block)(ws[1], h)\n"
            "        return jnp.sum(h**2)\n\n    return jax.grad(loss)(ws)\n".replace(
                "    block = ckpt(\n", "    block = ckpt(  # !\n"
            ),
            fixed="import jax\nimport jax.numpy as jnp\nfrom jax import remat as ckpt\n\n\n"
            f"{_LAYER}def step(ws, x):\n"
            "    block = ckpt(\n        layer,\n"
            "        policy=jax.checkpoint_policies.dots_saveable,  # the docs say so\n    )\n\n"
            "    def loss(ws):\n        h = block(ws[0], x)\n        h = jax.jit(block)(ws[1], h)\n"
            "        return jnp.sum(h**2)\n\n    return jax.grad(loss)(ws)\n",
        ),
        Example(
            f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def trunk(ws, x):\n    for w in ws:\n"
            "        x = jax.checkpoint(layer, prevent_cse=False)(w, x)  # !\n    return x\n",
            fixed=f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def trunk(ws, x):\n    for w in ws:\n"
            "        x = jax.checkpoint(layer)(w, x)\n    return x\n",
        ),
    )
    good = (
        Example(  # the default
            f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def loss(ws, x):\n    for w in ws:\n        x = jax.checkpoint(layer)(w, x)\n"
            f"    return jnp.sum(x**2)\n{_STEP}"
        ),
        Example(  # a scan
            f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def loss(ws, x):\n    block = jax.checkpoint(layer, prevent_cse=False)\n"
            "    x, _ = jax.lax.scan(lambda x, w: (block(w, x), None), x, ws)\n"
            f"    return jnp.sum(x**2)\n{_STEP}"
        ),
        Example(  # scanned, but for the last piece
            f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def loss(ws, x):\n    block = jax.checkpoint(layer, prevent_cse=False)\n"
            "    x = jax.lax.fori_loop(0, 3, lambda i, x: block(ws[i], x), x)\n"
            f"    return jnp.sum(block(ws[3], x) ** 2)\n{_STEP}"
        ),
        Example(  # a Python loop inside the body of a scan
            f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def group(x, ws):\n    for w in ws:\n"
            "        x = jax.checkpoint(layer, prevent_cse=False)(w, x)\n    return x, None\n\n\n"
            "def loss(ws, x):\n    x, _ = jax.lax.scan(group, x, ws)\n"
            f"    return jnp.sum(x**2)\n{_STEP}"
        ),
        Example(  # decided elsewhere
            f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def loss(ws, x, scanned=False):\n    for w in ws:\n"
            "        x = jax.checkpoint(layer, prevent_cse=not scanned)(w, x)\n"
            f"    return jnp.sum(x**2)\n{_STEP}"
        ),
        Example(  # hidden keywords
            f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def loss(ws, x, **options):\n    for w in ws:\n"
            "        x = jax.checkpoint(layer, **options)(w, x)\n"
            f"    return jnp.sum(x**2)\n{_STEP}"
        ),
        Example(  # nobody here differentiates it, nor loops over layers: its callers may scan
            f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def block(w, x):\n    return jax.checkpoint(layer, prevent_cse=False)(w, x)\n"
        ),
        Example(  # a branch
            f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def loss(ws, x):\n    block = jax.checkpoint(layer, prevent_cse=False)\n"
            "    x = jax.lax.cond(x[0, 0] > 0, lambda x: block(ws[0], x), lambda x: x, x)\n"
            f"    return jnp.sum(x**2)\n{_STEP}"
        ),
        Example(  # another module scans it
            f"import jax\nimport jax.numpy as jnp\n\n\n{_LAYER}"
            "def group(x, ws):\n    for w in ws:\n"
            "        x = jax.checkpoint(layer, prevent_cse=False)(w, x)\n    return x, None\n\n\n"
            "def loss(ws, x):\n    return jnp.sum(group(x, ws)[0])\n" + _STEP,
            files={
                "model.py": "import jax\nfrom module import group\n\n\n"
                "def run(x, ws):\n    return jax.lax.scan(group, x, ws)\n"
            },
        ),
        Example(  # handed to a helper that is not visible
            "import jax\nimport jax.numpy as jnp\nfrom elsewhere import repeat\n\n\n"
            f"{_LAYER}def loss(ws, x):\n"
            "    block = jax.checkpoint(layer, prevent_cse=False)\n"
            f"    return jnp.sum(repeat(block)(ws, block(ws[0], x)))\n{_STEP}"
        ),
        Example(  # linen sets it
            "import flax.linen as nn\n\n\nclass Model(nn.Module):\n    @nn.compact\n"
            "    def __call__(self, x):\n"
            "        return nn.remat_scan(nn.Dense, lengths=(2, 2))(8)(x)\n"
        ),
        Example(  # another library's
            "from torch.utils.checkpoint import checkpoint\nimport jax\n\n\n"
            "def loss(layer, w, x):\n    return checkpoint(layer, prevent_cse=False)(w, x)\n"
            + _STEP
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            value = cse.allowed(facts, site)
            call = _unprotected(facts, site) if value is not None else None
            if value is None or call is None:
                continue
            yield self.report(
                facts,
                site.node,
                f"{stages.spelled(facts, site)} with `prevent_cse=False` is called outside a "
                "staged loop: under `jax.jit` the recomputation is merged away",
                fix=cse.drop(facts, site, value),
                related=stages.at(facts, call.node, "called here"),
            )


def _unprotected(facts: Facts, site: Site) -> Use | None:
    """A call of a site's function in differentiated code, or in a Python loop over layers, where no
    use of it is, or may be, in a staged loop or branch.
    """
    found = None
    for use in facts.site_uses(site):
        if use.kind != "call" or not cse.PLAIN.issuperset(use.through):
            return None
        standing = facts.standing(use.node)
        if standing.loop or standing.branch or standing.rule or standing.unknown:
            return None
        if standing.checkpoint:
            return None  # cse-allowed-in-nested-checkpoint
        if standing.reverse or standing.python_loop:
            found = found or use
    return found
