import jax
import jax.numpy as jnp

seen = []


def host(x):
    seen.append(x)
    return x


@jax.checkpoint
def layer(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    scale = jax.pure_callback(host, shape, jax.lax.stop_gradient(x))  # !
    return jnp.sin(x) * scale
