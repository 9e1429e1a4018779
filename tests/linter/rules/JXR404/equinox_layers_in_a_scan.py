import equinox as eqx
import jax


class Net(eqx.Module):
    stacked: eqx.Module

    def __call__(self, x):
        weights, static = eqx.partition(self.stacked, eqx.is_array)

        def step(x, weights):
            layer = eqx.combine(weights, static)
            return eqx.filter_checkpoint(layer)(x), None  # !

        @eqx.filter_checkpoint  # !
        def again(x, weights):
            return eqx.combine(weights, static)(x), None

        x, _ = jax.lax.scan(step, x, weights)
        return jax.lax.scan(again, x, weights)[0]
