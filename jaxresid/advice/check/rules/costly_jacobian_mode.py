"""The rule `costly-jacobian-mode` (JXR846)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_JACOBIAN = """
    import jax
    import jax.numpy as jnp


    def curve(x, times):
        return jnp.sin(jnp.cumsum(jnp.tanh(times * x[0]) * x[1]))


    def loss(x, times):
        return jax.{transform}(curve)(x, times){mark}


    def loss_inputs():
        times = jax.ShapeDtypeStruct((4096,), jnp.float32)
        return jax.ShapeDtypeStruct(({inputs},), jnp.float32), times
"""


class CostlyJacobianMode(TracedRule):
    """A Jacobian of few inputs and many outputs is taken by rows, or of few outputs by columns.

    ## What it does
    Looks at the calls of `jax.jacrev` whose function has more outputs than inputs, and of
    `jax.jacfwd` whose function has more inputs than outputs, where what they make is much of the
    peak. It traces the program again with the calls of that line in the other mode, and says what
    the peak and the FLOPs are then. It is shown where that takes at least 3 % off the peak. Silent
    on a mesh, for complex numbers, and where the other mode cannot be traced: `jax.jacfwd` through
    a `custom_vjp`, `jax.jacrev` through a `while_loop`.

    ## Why is this bad?
    `jax.jacrev` pulls all rows back at once, and has each intermediate value once for each of them.
    `jax.jacfwd` pushes all columns forward. The fewer there are, the less it takes, of memory and
    of time.

    ## Use instead
    The other of the two, whose arguments and results are the same. `jax.jacrev` is for functions
    of fewer outputs than inputs.

    ## When is this fine?
    Where the memory is there and the time does not matter.
    """

    bad = (Example(_JACOBIAN.format(transform="jacrev", inputs=2, mark="  # !")),)
    good = (
        Example(_JACOBIAN.format(transform="jacfwd", inputs=2, mark="")),
        # As many inputs as outputs.
        Example(_JACOBIAN.format(transform="jacrev", inputs=4096, mark="")),
    )
