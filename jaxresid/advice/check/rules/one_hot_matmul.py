"""The rule `one-hot-matmul` (JXR847)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_EMBEDDING = """
    import jax
    import jax.numpy as jnp


    def loss(table, weights, ids):
        x = {embedded}
        return jnp.mean(jnp.tanh(x @ weights) ** 2)


    def loss_inputs():
        ids = jax.ShapeDtypeStruct((1024,), jnp.int32)
        table = jax.ShapeDtypeStruct((8192, 64), jnp.float32)
        return table, jax.ShapeDtypeStruct((64, 64), jnp.float32), ids
"""


class OneHotMatmul(TracedRule):
    """A one-hot is made in memory to be multiplied by a table, of which rows could be taken.

    ## What it does
    Finds matmuls of a table with a one-hot, by `jax.nn.one_hot` or a comparison with `jnp.arange`,
    that is live at the peak. It rewrites those of a line to take the rows of the table, and says
    what the peak, the kept bytes and the FLOPs are then. It is shown where that takes at least 3 %
    off the peak. Silent on a mesh, and where the compiler makes the one-hot inside the matmul, as
    that of TPUs mostly does.

    ## Why is this bad?
    The one-hot has an element for each index and each row of the table. A GPU's matmul reads it
    from memory; in a loss, it is kept for the backward pass.

    ## Use instead
    `table[ids]`, or `jnp.take(table, ids, axis=0)`, whose gradient adds up in the rows.

    ## When is this fine?
    On a mesh that splits the table by rows, where a matmul is easier to split than the taking of
    rows. And where indices that are no rows have to give zeros: `table[ids]` takes another row.
    """

    bad = (
        Example(
            _EMBEDDING.format(embedded="jax.nn.one_hot(ids, table.shape[0]) @ table  # !"),
            on="gpu:h100",
        ),
        Example(
            _EMBEDDING.format(
                embedded="(ids[:, None] == jnp.arange(8192)).astype(table.dtype) @ table  # !"
            ),
            on="gpu:h100",
        ),
    )
    good = (Example(_EMBEDDING.format(embedded="table[ids]"), on="gpu:h100"),)
