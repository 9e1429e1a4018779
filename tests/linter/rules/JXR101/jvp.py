import jax


def tangent(loss, w, t):
    return jax.jvp(jax.checkpoint(loss, prevent_cse=True), w, t)
