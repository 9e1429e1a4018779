from flax import nnx


class Model(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 4, rngs=rngs)

    def block(self, x):
        return self.linear(x)

    def __call__(self, x):
        return nnx.remat(self.block)(x)  # !
