"""Fewer checkpoints in a solver's loop, against the loop written with as many."""

import jax
import jax.numpy as jnp
import pytest

import jaxresid

ROWS, WIDTH, STEPS = 2048, 64, 100
ARRAYS = (jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32),)
ARRAYS += (jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),)


def solving(checkpoints=None):
    eqxi = pytest.importorskip("equinox.internal")

    def loss(w, x):
        start = jnp.float32(0), x
        kind = {"max_steps": STEPS, "kind": "checkpointed", "checkpoints": checkpoints}
        step = lambda c: (c[0] + 0.1, jnp.tanh(c[1] @ w))
        return eqxi.while_loop(lambda c: c[0] < 3, step, start, **kind)[1].sum()

    return loss


@pytest.mark.integration
def test_the_most_checkpoints_that_fit():
    peaks = {c: jaxresid.inspect(solving(c))(*ARRAYS).peak.nbytes for c in (9, 10)}
    plan = jaxresid.plan(solving(), budget=peaks[9])(*ARRAYS)
    (relief,) = [each for each in plan.floor.reliefs if each.kind == "solver"]
    assert peaks[9] < peaks[10]
    assert relief.peak_nbytes == peaks[9]
    assert relief.change.startswith("equinox.internal.while_loop(..., checkpoints=9), 9 in place")
    # The loop itself is as it was.
    assert jaxresid.inspect(solving())(*ARRAYS).peak.nbytes > peaks[10]
