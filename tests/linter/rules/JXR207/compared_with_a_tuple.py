import jax
import jax.numpy as jnp


def keep(p, *args, **params):
    if p not in ("dot_general", "exp"):  # !
        return False
    return True


@jax.checkpoint
def plain(w, x):
    return jnp.cos(jnp.sin(x @ w)).sum()


def block(w, x):
    return jax.checkpoint(plain, policy=keep)(w, x)
