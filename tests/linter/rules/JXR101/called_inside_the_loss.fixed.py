from jax import checkpoint as ckpt, value_and_grad
import jax.numpy as jnp


def forward(w, x):
    return jnp.tanh(x @ w).sum()


def train(w, batch):
    def loss(w):
        return forward(w, batch).mean()

    return value_and_grad(loss)(w)
