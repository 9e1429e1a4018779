import jax


@jax.checkpoint  # !
def loss(w, x):
    return (w * x).sum()
