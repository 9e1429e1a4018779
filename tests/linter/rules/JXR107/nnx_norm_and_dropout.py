from flax import nnx


class Net(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return nnx.remat(self.drop)(nnx.remat(self.norm)(x))
