"""optax on plain JAX: gradients accumulated over microbatches in a scan, loss scaling by hand, and
`optax.MultiSteps`."""

import jax
import jax.numpy as jnp
import optax

WIDTH, LAYERS = 128, 2


def init(key):
    keys = jax.random.split(key, LAYERS)
    return {
        "layers": [
            {
                "up": jax.random.normal(k, (WIDTH, 4 * WIDTH)) / 12,
                "down": jnp.zeros((4 * WIDTH, WIDTH)),
            }
            for k in keys
        ],
        "out": jnp.zeros((WIDTH, 10)),
    }


@jax.checkpoint
def layer(p, x):
    return x + jax.nn.silu(x @ p["up"]) @ p["down"]


def loss_fn(params, x, y):
    for p in params["layers"]:
        x = layer(p, x)
    logits = x @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


tx = optax.adam(1e-3)


def accumulating_step(params, opt_state, x, y):
    def one(grads, micro):
        loss, g = jax.value_and_grad(loss_fn)(params, *micro)
        return jax.tree.map(jnp.add, grads, g), loss

    zeros = jax.tree.map(jnp.zeros_like, params)
    grads, losses = jax.lax.scan(one, zeros, (x, y))
    grads = jax.tree.map(lambda g: g / x.shape[0], grads)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, losses.mean()


def accumulating_step_inputs():
    params = init(jax.random.key(0))
    return params, tx.init(params), jnp.zeros((4, 64, WIDTH)), jnp.zeros((4, 64), jnp.int32)


def accumulating_trees():
    params, opt_state, *batch = accumulating_step_inputs()
    return {"parameters": params, "optimizer-state": opt_state, "batch": batch}


def accumulating_objective():
    params, _, x, y = accumulating_step_inputs()
    return loss_fn, (params, x[0], y[0])


every4 = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), 4)


def multi_step(params, opt_state, scale, x, y):
    def scaled(params):
        return loss_fn(params, x, y) * scale

    loss, grads = jax.value_and_grad(scaled)(params)
    grads = jax.tree.map(lambda g: g / scale, grads)
    finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    updates, new_state = every4.update(grads, opt_state, params)
    new_params = optax.apply_updates(params, updates)
    keep = lambda new, old: jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)
    scale = jnp.where(finite, scale * 2, scale / 2)
    return keep(new_params, params), keep(new_state, opt_state), scale, loss / scale


def multi_step_inputs():
    params = init(jax.random.key(0))
    x, y = jnp.zeros((256, WIDTH)), jnp.zeros((256,), jnp.int32)
    return params, every4.init(params), jnp.float32(1024), x, y


def multi_trees():
    params, opt_state, scale, *batch = multi_step_inputs()
    return {"parameters": params, "others": (opt_state, scale, batch)}


def multi_objective():
    params, _, scale, x, y = multi_step_inputs()
    return lambda params, scale, x, y: loss_fn(params, x, y) * scale, (params, scale, x, y)
