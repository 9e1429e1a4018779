from flax import nnx


class Net(nnx.Module):
    def __init__(self, deep, rngs):
        if deep:
            self.mix = nnx.Sequential(nnx.Linear(8, 8, rngs=rngs), nnx.gelu)
        else:
            self.mix = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x):
        return nnx.remat(self.mix)(x)
