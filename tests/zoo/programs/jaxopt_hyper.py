"""jaxopt: the gradient of a validation loss by a regularization strength, through a solver that is
unrolled, and through one that is differentiated implicitly."""

import jax.numpy as jnp
import jaxopt


def inner(w, strength, x, y):
    return jnp.mean((x @ w - y) ** 2) + jnp.exp(strength) * jnp.sum(w**2)


def unrolled(strength, w, x, y, xv, yv):
    solver = jaxopt.GradientDescent(
        inner,
        maxiter=20,
        stepsize=0.1,
        acceleration=False,
        implicit_diff=False,
        unroll=True,
        jit=True,
    )
    w = solver.run(w, strength, x, y).params
    return jnp.mean((xv @ w - yv) ** 2)


def implicit(strength, w, x, y, xv, yv):
    solver = jaxopt.LBFGS(inner, maxiter=20, linesearch="backtracking")
    w = solver.run(w, strength, x, y).params
    return jnp.mean((xv @ w - yv) ** 2)


def unrolled_inputs():
    return (
        jnp.float32(-3),
        jnp.zeros((64,)),
        jnp.zeros((256, 64)),
        jnp.zeros((256,)),
        jnp.zeros((64, 64)),
        jnp.zeros((64,)),
    )


implicit_inputs = unrolled_inputs
