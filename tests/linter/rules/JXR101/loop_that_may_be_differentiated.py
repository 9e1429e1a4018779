import jax
import jax.numpy as jnp


def energy(x):
    return jnp.sum(jnp.tanh(x) ** 2)


def relax(x):
    def step(x, _):
        return x - 0.1 * jax.grad(jax.checkpoint(energy))(x), None

    return jax.lax.scan(step, x, length=100)[0]
