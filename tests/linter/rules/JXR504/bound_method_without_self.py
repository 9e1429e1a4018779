import jax


class Model:
    def layer(self, x, train):
        return x * 2 if train else x

    def __call__(self, x):
        f = jax.checkpoint(self.layer, static_argnums=(1,))
        return f(x, True)
