import jax
import jax.numpy as jnp


def layer(x, w):
    return jnp.sin(jnp.tanh(x @ w) @ w), None


def trunk(ws, x, cfg, careful):
    body = jax.checkpoint(layer, prevent_cse=careful)
    if cfg.scan_layers:
        return jax.lax.scan(body, x, ws)[0]
    for w in ws:
        x, _ = body(x, w)
    return x
