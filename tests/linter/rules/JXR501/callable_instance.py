import jax


class Layer:
    def __call__(self, x):
        return x * x


def loss(x):
    return jax.checkpoint(Layer())(x).sum()
