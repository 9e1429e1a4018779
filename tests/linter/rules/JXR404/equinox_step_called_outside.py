import equinox as eqx
import jax


class Net(eqx.Module):
    stacked: eqx.Module

    def __call__(self, x):
        weights, static = eqx.partition(self.stacked, eqx.is_array)

        def step(x, weights):
            return eqx.filter_checkpoint(eqx.combine(weights, static))(x), None

        x, _ = step(x, jax.tree.map(lambda w: w[0], weights))
        return jax.lax.scan(step, x, weights)[0]
