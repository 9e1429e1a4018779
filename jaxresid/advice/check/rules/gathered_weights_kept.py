"""The rule `gathered-weights-kept` (JXR843)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_LAYERS = """
    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    MESH = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))


    def product(x, w):
        return x @ jax.lax.all_gather(w, "data", axis=1, tiled=True){mark}


    def on_each_device(weights, x):
        def layer(x, w):
            return jnp.tanh({call}(x, w)), None

        x, _ = jax.lax.scan({body}, x, weights)
        return jax.lax.psum(jnp.sum(x), "data")


    loss = jax.shard_map(
        on_each_device,
        mesh=MESH,
        in_specs=(P(None, None, "data"), P("data")),
        out_specs=P(),
        check_vma=False,
    )


    def array(shape, split):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, split))


    def loss_inputs():
        return array((8, 1024, 1024), P(None, None, "data")), array((4096, 1024), P("data"))
"""
_AGAIN = "jax.checkpoint(product, prevent_cse=False)"


class GatheredWeightsKept(TracedRule):
    """Each device gathers weights, and keeps them whole until the backward pass.

    ## What it does
    Finds residuals that are arguments which `jax.lax.all_gather` made whole inside `jax.shard_map`,
    perhaps cast or reshaped, in loops and outside. It puts the gathering into a checkpoint with
    what reads its result, differentiates again, and says what the peak and the kept bytes of one
    device are then. It is shown where that takes at least 3 % off the peak. Silent for activations
    that are gathered, for what a checkpoint holds, where the mesh is not known, and where XLA
    itself gathers: whether it keeps the result is not known before it has compiled.

    ## Why is this bad?
    The weights are split over the devices so that none has to hold them all. With every layer's
    weights kept whole from the forward to the backward pass each device holds them all after all.

    ## Use instead
    A `jax.checkpoint` around the gathering and what reads it, `prevent_cse=False` in a loop: it
    keeps the device's own piece, which is in memory anyway, and the backward pass gathers once
    more. Around a matmul it recomputes no matmul. A checkpoint of the whole layer does it as well.

    ## When is this fine?
    Where the weights fit, and the network between the devices is what is slow.
    """

    bad = (Example(_LAYERS.format(mark="  # !", call="product", body="layer")),)
    good = (
        Example(_LAYERS.format(mark="", call=_AGAIN, body="layer")),
        Example(_LAYERS.format(mark="", call="product", body="jax.checkpoint(layer)")),
    )
