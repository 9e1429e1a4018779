from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Related, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use

# A mapped checkpoint keeps and recomputes the whole batch at once, as an unmapped one does.
_TRANSPARENT = {"jit", "vmap", "partial"}


class CheckpointedLoss(Rule):
    """The whole differentiated function is checkpointed, without a policy.

    ## What it does
    Finds a function that is checkpointed as a whole and then handed to `jax.grad`,
    `jax.value_and_grad`, `jax.vjp` or a library's form of them, in the same file or in another one
    of the project.

    ## Why is this bad?
    The residuals shrink to the arguments, but the backward pass starts by recomputing all of them
    at once, so the peak is normally where it was. What changes is the time: under
    `jax.value_and_grad` the forward pass runs twice (a third more FLOPs on a plain network).

    ## Use instead
    Checkpoint the parts: each layer, or the body of the scan over layers. Or keep the outer
    checkpoint and give it a policy that saves what is dear to recompute.

    ## When it is right after all
    With a policy. Inside a staged loop, a `lax.map` or another derivative, where the function is
    one of many; in a rule of `custom_vjp`. The compiler's scheduling can still move the peak by
    some 10 %, and on sharded models the barrier also keeps gathered weights from being shared
    between the passes: measure before you remove it there.

    ## Is the fix safe?
    No: values stay the same, memory and time may change.
    """

    code = "JXR101"
    name = "checkpointed-loss"
    severity = "warning"
    lenient_in_tests = True
    why = (
        "The backward pass begins by recomputing every residual at once, so the peak is where it "
        "was, and value_and_grad runs the forward pass twice."
    )
    help = "checkpoint the layers instead, or give it a policy"
    fixes = "unsafe"
    bad = (
        Example(
            "import jax\nimport jax.numpy as jnp\n\n\ndef loss(w, x):\n"
            "    for _ in range(3):\n        x = jnp.tanh(x @ w)\n    return x.sum()\n\n\n"
            "def step(w, x):\n    return jax.value_and_grad(jax.checkpoint(loss))(w, x)  # !\n",
            fixed="import jax\nimport jax.numpy as jnp\n\n\ndef loss(w, x):\n"
            "    for _ in range(3):\n        x = jnp.tanh(x @ w)\n    return x.sum()\n\n\n"
            "def step(w, x):\n    return jax.value_and_grad(loss)(w, x)\n",
        ),
        Example(
            "import jax\nimport jax.numpy as jnp\n\n\n@jax.checkpoint  # !\ndef loss(w, x):\n"
            "    return jnp.tanh(x @ w).sum()\n\n\ngradient = jax.jit(jax.grad(loss))\n",
            fixed="import jax\nimport jax.numpy as jnp\n\n\ndef loss(w, x):\n"
            "    return jnp.tanh(x @ w).sum()\n\n\ngradient = jax.jit(jax.grad(loss))\n",
        ),
        Example(
            "import jax\nimport jax.numpy as jnp\n\n\ndef make_loss(x):\n    def loss(w):\n"
            "        return jnp.tanh(x @ w).sum()\n\n    return jax.checkpoint(loss)  # !\n\n\n"
            "def step(w, x):\n    return jax.value_and_grad(make_loss(x))(w)\n",
            fixed="import jax\nimport jax.numpy as jnp\n\n\ndef make_loss(x):\n    def loss(w):\n"
            "        return jnp.tanh(x @ w).sum()\n\n    return loss\n\n\n"
            "def step(w, x):\n    return jax.value_and_grad(make_loss(x))(w)\n",
        ),
        Example(
            "import functools\n\nimport jax\nimport jax.numpy as jnp\n\n\n"
            "@functools.partial(jax.remat, prevent_cse=True)  # !\ndef loss(w, x):\n"
            "    return jnp.tanh(x @ w).sum()\n\n\ngradient = jax.grad(jax.jit(loss))\n",
            fixed="import functools\n\nimport jax\nimport jax.numpy as jnp\n\n\n"
            "def loss(w, x):\n"
            "    return jnp.tanh(x @ w).sum()\n\n\ngradient = jax.grad(jax.jit(loss))\n",
        ),
        Example(
            "from jax import checkpoint as ckpt, value_and_grad\nimport jax.numpy as jnp\n\n\n"
            "def forward(w, x):\n    return jnp.tanh(x @ w).sum()\n\n\ndef train(w, batch):\n"
            "    def loss(w):\n        return ckpt(forward)(w, batch).mean()  # !\n\n"
            "    return value_and_grad(loss)(w)\n",
            fixed="from jax import checkpoint as ckpt, value_and_grad\nimport jax.numpy as jnp\n\n\n"
            "def forward(w, x):\n    return jnp.tanh(x @ w).sum()\n\n\ndef train(w, batch):\n"
            "    def loss(w):\n        return forward(w, batch).mean()\n\n"
            "    return value_and_grad(loss)(w)\n",
        ),
        Example(
            "import equinox as eqx\n\n\n@eqx.filter_value_and_grad\n@eqx.filter_checkpoint  # !\n"
            "def loss(model, x):\n    return model(x).sum()\n",
            fixed="import equinox as eqx\n\n\n@eqx.filter_value_and_grad\n"
            "def loss(model, x):\n    return model(x).sum()\n",
        ),
        Example(
            "import jax\n\n\ndef one(w, x):\n    return (jax.numpy.sin(w) * x).sum()\n\n\n"
            "def step(w, xs):\n    def loss(w):\n"
            "        losses = jax.vmap(jax.checkpoint(one), (None, 0))(w, xs)  # !\n"
            "        return losses.mean()\n\n    return jax.value_and_grad(loss)(w)\n",
            fixed="import jax\n\n\ndef one(w, x):\n    return (jax.numpy.sin(w) * x).sum()\n\n\n"
            "def step(w, xs):\n    def loss(w):\n"
            "        losses = jax.vmap(one, (None, 0))(w, xs)\n"
            "        return losses.mean()\n\n    return jax.value_and_grad(loss)(w)\n",
        ),
        Example(
            "import jax\n\n\n@jax.checkpoint  # !\ndef loss(w, x):\n    return (w * x).sum()\n",
            fixed="import jax\n\n\ndef loss(w, x):\n    return (w * x).sum()\n",
            files={
                "train.py": "import jax\nfrom module import loss\n\n\ndef step(w, x):\n"
                "    return jax.value_and_grad(loss)(w, x)\n"
            },
        ),
    )
    good = (
        Example(
            "import jax\n\n\ndef wrap(f):\n    return jax.checkpoint(f)\n\n\n"
            "def step(loss, w):\n    return jax.grad(wrap(loss))(w)\n"
        ),
        Example(
            "import jax\n\n\ndef step(loss, w):\n    cp = jax.checkpoint_policies\n"
            "    return jax.grad(jax.checkpoint(loss, policy=cp.dots_saveable))(w)\n"
        ),
        Example(
            "import jax\n\n\ndef step(loss, w, policy):\n"
            "    return jax.grad(jax.checkpoint(loss, policy=policy))(w)\n"
        ),
        Example(
            "import jax\n\n\ndef step(loss, w, **options):\n"
            "    return jax.grad(jax.checkpoint(loss, **options))(w)\n"
        ),
        Example(
            "import jax\n\n\ndef per_example(loss, w, xs):\n"
            "    return jax.lax.map(lambda x: jax.grad(jax.checkpoint(loss))(w, x), xs)\n"
        ),
        Example(
            "import jax\n\n\ndef forces(energy, pos):\n"
            "    return -jax.grad(jax.checkpoint(energy))(pos)\n"
        ),
        Example(
            "import jax\n\n\ndef matching(energy, params, pos, target):\n    def loss(params):\n"
            "        f = jax.grad(jax.checkpoint(energy))(pos, params)\n"
            "        return ((f - target) ** 2).sum()\n\n    return jax.grad(loss)(params)\n"
        ),
        Example(
            "import jax\n\n\n@jax.custom_vjp\ndef f(x):\n    return g(x)\n\n\ndef g(x):\n"
            "    return x * x\n\n\ndef fwd(x):\n    y, vjp = jax.vjp(jax.remat(g), x)\n"
            "    return y, vjp\n\n\ndef bwd(vjp, ct):\n    return vjp(ct)\n\n\nf.defvjp(fwd, bwd)\n"
        ),
        Example(
            "import jax\n\n\ndef start(loss, w):\n    return jax.vjp(jax.checkpoint(loss), w)\n"
        ),
        Example(
            "import jax\n\n\ndef layer(w, x):\n    return jax.numpy.tanh(x @ w)\n\n\n"
            "def loss(ws, x):\n    for w in ws:\n        x = jax.checkpoint(layer)(w, x)\n"
            "    return x.sum()\n\n\ngradient = jax.grad(loss)\n"
        ),
        Example(
            "import jax\n\n\n@jax.checkpoint\ndef block(w, x):\n    return jax.numpy.sin(x @ w)\n\n\n"
            "def loss(w, x):\n    return block(w, block(w, x)).sum()\n\n\n"
            "gradient = jax.grad(loss)\npiece = jax.grad(lambda w, x: block(w, x).sum())\n"
        ),
        Example(
            "def grad(f):\n    return f\n\n\ndef step(checkpoint, loss):\n"
            "    return grad(checkpoint(loss))\n"
        ),
        Example(
            "import jax\n\n\ndef tangent(loss, w, t):\n"
            "    return jax.jvp(jax.checkpoint(loss, prevent_cse=True), w, t)\n"
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            if site.api.loop or not facts.policy(site).saves_nothing:
                continue
            loop = stages.whole_loop(facts, site)
            if loop is not None and not any(
                stages.is_checkpointed(facts, b) is not False for b in loop.bodies
            ):
                continue  # checkpoint-around-loop has the better remedy
            evidence = _evidence(facts, site)
            if evidence is not None:
                by, related = evidence
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.spelled(facts, site)} wraps the whole function that `{by}` "
                    "differentiates: this normally saves no peak memory and recomputes the "
                    "forward pass",
                    fix=edits.without_checkpoint(facts, site),
                    related=related,
                )


def _evidence(facts: Facts, site: Site) -> tuple[str, tuple[Related, ...]] | None:
    """What differentiates the whole of a site: its name and where."""
    uses = facts.site_uses(site)
    found = stages.top_derivatives(facts, uses)
    if any("made" in u.through for u in uses) and facts.target(site) is None:
        return None  # a wrapper, which others may call for something else
    if found is None:
        return _inside(facts, uses)
    if found:
        by = stages.derivative_name(facts, found[0])
        return by, stages.at(facts, found[0].node, "differentiated here")
    remote = facts.remote_uses(site.definition) if site.definition is not None else ()
    if any(u.in_loop or u.in_reverse or u.kind in {"loop", "checkpoint", "rule"} for u in remote):
        return None
    for use in remote:
        if use.kind == "derivative" and not use.forward and "custom" not in use.through:
            return use.callee, (Related("differentiated here", use.path, use.span),)
    return None


def _inside(facts: Facts, uses: tuple[Use, ...]) -> tuple[str, tuple[Related, ...]] | None:
    """The same where a function does nothing but call the checkpointed one."""
    if len(uses) != 1 or uses[0].kind != "call" or not set(uses[0].through) <= _TRANSPARENT:
        return None
    call = uses[0].node
    function = facts.names.function(call)
    if (
        not isinstance(call, ast.Call)
        or function is None
        or not stages.is_only(facts, function, call)
    ):
        return None
    found = stages.top_derivatives(facts, facts.uses(function))
    if not found:
        return None
    by = stages.derivative_name(facts, found[0])
    return by, stages.at(facts, found[0].node, "differentiated here")
