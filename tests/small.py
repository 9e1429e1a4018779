"""Small programs, and short ways to what is asked of their reports."""

import jax
import jax.numpy as jnp
from jax import lax

import jaxresid

cp = jax.checkpoint_policies


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def kept(fun, *args, **options):
    """Return what a function that is differentiated keeps, whatever it returns."""
    report = jaxresid.inspect(fun, **{"mode": "loss", **options})(*args)
    return [r for r in report.residuals if r.origin.kind == "computed"]


def only(fun, *args, **options):
    (residual,) = kept(fun, *args, **options)
    return residual


def paths(report):
    return sorted(r.origin.path for r in report.residuals if r.origin.kind == "argument")


def codes(stack):
    return [location.code for location in stack]


# The programs. Each is a function of its own, so that its lines say which is which.


def scanned(x):
    def body(c, _):
        c = jnp.sin(c)
        return c, None

    return lax.scan(body, x, length=3)[0]


@jax.jit
def jitted(x):
    return jnp.sin(x)


def dotsin(W, x):
    return jnp.sin(W @ x)


saving_dots = jax.checkpoint(dotsin, policy=cp.dots_saveable)


@jax.custom_vjp
def halved(x):
    return jnp.exp(x) / 2


def halved_fwd(x):
    y = jnp.exp(x)
    return y / 2, jnp.tanh(y)


def halved_bwd(t, g):
    return (t * g,)


halved.defvjp(halved_fwd, halved_bwd)
