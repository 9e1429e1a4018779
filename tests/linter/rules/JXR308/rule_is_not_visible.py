import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from kernels import act_bwd, forward, other_fwd


@jax.custom_vjp
def act(x, w):
    return jnp.sin(checkpoint_name(x @ w, "a"))


def act_fwd(x, w):
    return forward(x, w), (x, w)


act.defvjp(act_fwd, act_bwd)


@jax.custom_vjp
def other(x, w):
    return jnp.sin(checkpoint_name(x @ w, "a"))


other.defvjp(other_fwd, act_bwd)
