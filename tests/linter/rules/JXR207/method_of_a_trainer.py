import jax


class Trainer:
    def keep(self, prim, *args, **params):
        return prim.name == "dot_general"

    def run(self, layer, w, x):
        return jax.checkpoint(layer, policy=self.keep)(w, x)
