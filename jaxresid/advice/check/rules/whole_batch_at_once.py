"""The rule `whole-batch-at-once` (JXR842)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_LAYERS = """
    import jax
    import jax.numpy as jnp


    def loss(weights, x):{mark}
        for w in weights:
            x = x + jnp.sin(x @ w)
        return jnp.mean({value})


    def loss_inputs():
        weights = [jax.ShapeDtypeStruct((4096, 4096), jnp.float32)] * 8
        return weights, jax.ShapeDtypeStruct(({rows}, 4096), jnp.float32)
"""


class WholeBatchAtOnce(TracedRule):
    """A batch goes through at once and does not surely fit, and in microbatches it takes less.

    ## What it does
    Looks at programs whose estimated peak, with its range, is not below what a program can have of
    a device of `--on`, or `--max-peak`. It traces them again with the batch in microbatches whose
    gradients are added up in a scan, and says what the peak is with the fewest that fit; where none
    do, with the fewest that gain nearly as much as single items. It is shown where that takes at
    least 3 % off the peak. Silent where it is not known which arguments hold the batch, where XLA
    says that it fits (`--compile`), where the parts cannot be added up (a loss that is no scalar,
    running means, steps on a mesh), and where items are compared with each other, as in a
    contrastive loss, of which microbatches make another one.

    With `--compile` the microbatches are compiled too. XLA refutes them where its peak falls by
    less than 3 %, and where they were said to fit and do not.

    ## Why is this bad?
    What is kept for the backward pass grows with the batch. Parameters, gradients and the
    optimizer's state do not: with microbatches all but these shrinks.

    ## Use instead
    `jax.lax.scan` over the microbatches, with a carry that adds up `jax.value_and_grad`, then one
    update. `jaxresid plan --microbatches 1..8` writes it and weighs checkpoints against it. The
    FLOPs are the same; small microbatches use an accelerator less well, which is not in the
    figures.

    ## When is this fine?
    Where a smaller batch, checkpoints or more devices are wanted instead. Microbatches change
    results where a layer sees the whole batch (batch normalisation, the capacity of experts), and
    where the loss is divided by something of the batch, such as the number of tokens that are no
    padding: each microbatch has its own then.
    """

    bad = (Example(_LAYERS.format(value="x**2", rows=2**20, mark="  # !")),)
    good = (
        Example(_LAYERS.format(value="x**2", rows=2**16, mark="")),
        # Each item is compared with all others.
        Example(_LAYERS.format(value="jnp.sin(x @ x.T)", rows=2**18, mark="")),
    )
