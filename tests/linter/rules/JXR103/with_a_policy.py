import jax


def step(c, w):
    return c * w, None


def loss(ws, x):
    cp = jax.checkpoint_policies
    run = jax.checkpoint(lambda c: jax.lax.scan(step, c, ws), policy=cp.dots_saveable)
    return run(x)[0].sum()
