"""distrax and Haiku: a coupling flow with rational-quadratic splines, one step of training."""

import distrax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

FEATURES, BINS = 8, 4


def conditioner():
    return hk.Sequential(
        [
            hk.Flatten(preserve_dims=-1),
            hk.nets.MLP([64, 64], activate_final=True),
            hk.Linear(FEATURES * (3 * BINS + 1), w_init=jnp.zeros, b_init=jnp.zeros),
            hk.Reshape((FEATURES, 3 * BINS + 1), preserve_dims=-1),
        ]
    )


def flow():
    mask = np.arange(FEATURES) % 2 == 0
    layers = []
    for _ in range(2):
        layers.append(
            distrax.MaskedCoupling(
                mask=mask,
                bijector=lambda p: distrax.RationalQuadraticSpline(p, range_min=0.0, range_max=1.0),
                conditioner=conditioner(),
            )
        )
        mask = ~mask
    base = distrax.Independent(
        distrax.Uniform(jnp.zeros(FEATURES), jnp.ones(FEATURES)), reinterpreted_batch_ndims=1
    )
    return distrax.Transformed(base, distrax.Inverse(distrax.Chain(layers)))


log_prob = hk.without_apply_rng(hk.transform(lambda data: flow().log_prob(data)))
optimizer = optax.adam(1e-4)


def loss_fn(params, key, batch):
    data = batch.astype(jnp.float32)
    data = (data + jax.random.uniform(key, data.shape)) / 256.0
    return -jnp.mean(log_prob.apply(params, data))


@jax.jit
def update(params, key, opt_state, batch):
    grads = jax.grad(loss_fn)(params, key, batch)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state


def update_inputs():
    batch, key = jnp.zeros((64, FEATURES), jnp.uint8), jax.random.PRNGKey(0)
    params = log_prob.init(key, jnp.zeros((64, FEATURES)))
    return params, key, optimizer.init(params), batch


def trees():
    params, key, opt_state, batch = update_inputs()
    return {"parameters": params, "optimizer-state": opt_state, "batch": (key, batch)}


def objective():
    params, key, _, batch = update_inputs()
    return loss_fn, (params, key, batch)
