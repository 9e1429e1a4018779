"""Haiku: a transformer language model with `hk.remat` around each layer's feed-forward part."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax


def forward(tokens):
    x = hk.Embed(256, 64)(tokens)
    mask = jnp.tril(jnp.ones((1, 1, tokens.shape[1], tokens.shape[1])))
    init = hk.initializers.VarianceScaling(0.5)
    for _ in range(2):
        h = hk.LayerNorm(-1, True, True)(x)
        x = x + hk.MultiHeadAttention(4, 16, w_init=init, model_size=64)(h, h, h, mask)
        h = hk.LayerNorm(-1, True, True)(x)

        def dense(h):
            h = jax.nn.gelu(hk.Linear(256)(h))
            return hk.dropout(hk.next_rng_key(), 0.1, hk.Linear(64)(h))

        x = x + hk.remat(dense)(h)
    return hk.Linear(256)(hk.LayerNorm(-1, True, True)(x))


model = hk.transform(forward)
optimizer = optax.adam(3e-4)


def loss_fn(params, key, tokens):
    logits = model.apply(params, key, tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@jax.jit
def update(params, key, opt_state, tokens):
    key, sub = jax.random.split(key)
    loss, grads = jax.value_and_grad(loss_fn)(params, sub, tokens)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), key, opt_state, loss


def update_inputs():
    key, tokens = jax.random.PRNGKey(0), jnp.zeros((8, 65), jnp.int32)
    params = model.init(key, tokens[:, :-1])
    return params, key, optimizer.init(params), tokens


def trees():
    params, key, opt_state, tokens = update_inputs()
    return {"parameters": params, "others": (opt_state, key, tokens)}


def objective():
    params, key, _, tokens = update_inputs()
    return loss_fn, (params, key, tokens)


def loss(params, key, tokens):
    return loss_fn(params, key, tokens)


def loss_inputs():
    params, key, _, tokens = update_inputs()
    return params, key, tokens
