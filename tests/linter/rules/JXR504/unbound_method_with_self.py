from functools import partial

import jax


class Model:
    @partial(jax.checkpoint, static_argnums=(0, 2))
    def layer(self, x, train):
        return x * 2 if train else x

    def __call__(self, x):
        return self.layer(x, True)
