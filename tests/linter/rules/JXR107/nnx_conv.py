from flax import nnx


class Stem(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)

    def __call__(self, x):
        return nnx.remat(self.conv)(x)  # !
