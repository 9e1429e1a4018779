import jax


def step(loss, w, **options):
    return jax.grad(jax.checkpoint(loss, **options))(w)
