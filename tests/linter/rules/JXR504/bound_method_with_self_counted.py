import jax


class Model:
    def layer(self, x, train):
        return x * 2 if train else x

    def make(self):
        return jax.checkpoint(self.layer, static_argnums=(2,))  # !


def loss(x):
    return Model().make()(x, True).sum()
