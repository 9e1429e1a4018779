import jax


def one(w, x):
    return (jax.numpy.sin(w) * x).sum()


def step(w, xs):
    def loss(w):
        losses = jax.vmap(jax.checkpoint(one), (None, 0))(w, xs)  # !
        return losses.mean()

    return jax.value_and_grad(loss)(w)
