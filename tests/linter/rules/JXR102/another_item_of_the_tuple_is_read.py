import jax
import jax.numpy as jnp


def head(w, h):
    return jnp.sin(h @ w)


def forward(w, x):
    h = jnp.tanh(x @ w)
    return jax.checkpoint(head)(w, h), h


def loss(w, x):
    _, hidden = forward(w, x)
    return jnp.mean(hidden)


step = jax.jit(jax.value_and_grad(loss))
