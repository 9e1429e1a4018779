from flax import nnx


class Net(nnx.Module):
    def __init__(self, wide, rngs):
        if wide:
            self.mix = nnx.Linear(8, 8, rngs=rngs)
        else:
            self.mix = nnx.Conv(8, 8, (1,), rngs=rngs)

    def __call__(self, x):
        call = lambda layer, x: layer(x)
        return nnx.gelu(call(self.mix, x))
