"""The rule `needless-loop-state` (JXR833)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_LOOP = """
    import jax
    import jax.numpy as jnp


    def loss(weights, x):
        @jax.checkpoint
        def layer(x, w):
            x = x + jnp.tanh(x @ w)
            return x, {out}

        {returned} = jax.lax.scan(layer, x, weights){mark}
        return jnp.sum({read} ** 2)


    def loss_inputs():
        weights = jax.ShapeDtypeStruct((16, 256, 256), jnp.float32)
        return weights, jax.ShapeDtypeStruct((2048, 256), jnp.float32)
"""
_CARRY = """
    import jax
    import jax.numpy as jnp


    def loss(weights, x, context):
        @jax.checkpoint
        def layer({carry}, w):
            return {result}, None

        {returned}, _ = jax.lax.scan(layer, {initial}, weights){mark}
        return jnp.sum(x ** 2)


    def loss_inputs():
        weights = jax.ShapeDtypeStruct((16, 256, 256), jnp.float32)
        x = jax.ShapeDtypeStruct((2048, 256), jnp.float32)
        return weights, x, x
"""
_HISTORY = """
    import jax
    import jax.numpy as jnp


    def loss(x):
        def trip(x, _):
            x = x + 0.1 * jnp.sin(x)
            return x, x

        x, history = jax.lax.scan(trip, x, length=100){mark}
        return x, {read}


    def loss_inputs():
        return (jax.ShapeDtypeStruct((1024, 1024), jnp.float32),)
"""
_UPDATED = "x + jnp.tanh(x @ w) * context"


class NeedlessLoopState(TracedRule):
    """A loop stacks or carries what it need not, and that takes memory.

    ## What it does
    Finds scans whose body returns slices of its own inputs, which are stacked once more; that stack
    a value which is the same in each trip; that stack results of which only the last is read, or
    only sums, means, maxima or the like over all trips, also of what is computed from them element
    by element; and that carry what never changes. It goes by how values flow, also through calls
    and checkpoints in the body, where JAX does not see it. It rewrites the scans of a line without
    all that, differentiates again where there is a gradient, and says what the peak, the kept bytes
    and the FLOPs are then. It is shown where that takes at least 3 % off the peak. Silent for what
    nothing reads, which compilers drop, for what a TPU may have in its vector memory (under 128
    MiB), and for programs on a mesh.

    ## Why is this bad?
    What a loop stacks has a slice for each trip: of parameters that the body hands on, all of them
    are in memory twice. A carry is an input of a checkpoint in the body, so the backward pass keeps
    it for each trip, although it is the same each time.

    ## Use instead
    Return from the body what changes and is read, and close over what does not change. In place of
    a history that is reduced, carry the sum or the maximum so far. Of an NNX
    layer that is scanned, return the last of `nnx.split(layer, nnx.Param, ...)` and not
    `nnx.state(layer)`; with `nn.scan`, hand what all layers read to `in_axes=nn.broadcast`.

    ## When is this fine?
    Where the memory is there. A sum that is carried is added up trip by trip, which rounds in
    another way than the sum of a stack: carry it in float32.
    """

    bad = (
        Example(_LOOP.format(out="x", returned="_, xs", read="xs[-1]", mark="  # !")),
        Example(
            _CARRY.format(
                carry="carry",
                result="(carry[0] + jnp.tanh(carry[0] @ w) * carry[1], carry[1])",
                returned="(x, _)",
                initial="(x, context)",
                mark="  # !",
            )
        ),
        Example(_HISTORY.format(read="jnp.mean(history**2, axis=0)", mark="  # !")),
    )
    good = (
        Example(_LOOP.format(out="None", returned="x, _", read="x", mark="")),
        Example(_CARRY.format(carry="x", result=_UPDATED, returned="x", initial="x", mark="")),
        # The whole stack is read.
        Example(_LOOP.format(out="x", returned="_, xs", read="xs", mark="")),
        # A median needs all of it.
        Example(_HISTORY.format(read="jnp.median(history, axis=0)", mark="")),
        # Nothing reads the stack.
        Example(_LOOP.format(out="w", returned="x, _", read="x", mark="")),
    )
