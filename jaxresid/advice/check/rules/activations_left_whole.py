"""The rule `activations-left-whole` (JXR844)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_LAYERS = """
    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


    def split(x, *spec):
        return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(*spec)))


    def layer(x, w):
        up, down = w
        x = {value}{mark}
        return x, None


    def loss(weights, x):
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
        return jnp.mean(x.astype(jnp.float32) ** 2)


    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(MESH, P(*spec)))


    def loss_inputs():
        up = array((8, 1024, 4096), None, None, "model")
        down = array((8, 4096, 1024), None, "model", None)
        return (up, down), array((64, 1024, 1024), "data")
"""
_VALUE = "x + jax.nn.gelu(x @ up) @ down"


class ActivationsLeftWhole(TracedRule):
    """Devices keep activations whole along a mesh axis that one constraint would split them by.

    ## What it does
    On a mesh whose axes are `auto`, finds residuals that XLA leaves whole along an axis which
    divides one of their dimensions. It constrains the largest of the lines that keep most of them,
    in each such way, differentiates again, has XLA split that forward pass, and says what the peak
    and the kept bytes of one device are then, and what it sends. The one constraint is shown that
    takes most off the peak, of those that do about as much the one that sends least, and only if it
    takes at least 10 % off, as over a mesh estimates are not as good as on one device, and has
    devices send at most half as much again. Ask again when it is in place: another may be worth it
    then. Silent for training steps, as XLA is asked how it splits a function's forward pass alone
    (report on the loss), for `explicit` axes, whose types say it, inside `shard_map`, and where all
    checkpointed layers are in Python loops: what XLA keeps of those over a mesh is not told well
    enough.

    ## Why is this bad?
    XLA splits what it is not told to split as its neighbours are: behind a matmul whose sums are
    added up over the devices, every device has the whole result, and with it whatever is computed
    of that up to the next split weight. Each layer keeps as much.

    ## Use instead
    `jax.lax.with_sharding_constraint` on the value. Along a batch axis devices exchange less; along
    the axis of split weights (sequence parallelism) the sum becomes a reduce-scatter with an
    all-gather behind it, which sends as much as the sum did.

    ## When is this fine?
    Where the program fits, or where what devices would exchange more costs more than it is worth.
    """

    bad = (Example(_LAYERS.format(value=_VALUE, mark="  # !")),)
    good = (Example(_LAYERS.format(value=f'split({_VALUE}, "data", "model")', mark="")),)
