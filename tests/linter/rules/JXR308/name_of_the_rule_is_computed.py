import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def make(name, act_bwd):
    @jax.custom_vjp
    def act(x, w):
        return jnp.sin(checkpoint_name(x @ w, "a"))

    def act_fwd(x, w):
        y = checkpoint_name(x @ w, name)
        return jnp.sin(y), (y, x, w)

    act.defvjp(act_fwd, act_bwd)
    return act
