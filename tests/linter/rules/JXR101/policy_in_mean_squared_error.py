import jax
import jax.numpy as jnp


def net(w, x):
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def loss(w, x, y):
    policy = jax.checkpoint_policies.dots_saveable
    return jnp.mean((jax.checkpoint(net, policy=policy)(w, x) - y) ** 2)


step = jax.grad(loss)
