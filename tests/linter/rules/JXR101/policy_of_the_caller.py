import jax


def step(loss, w, policy):
    return jax.grad(jax.checkpoint(loss, policy=policy))(w)
