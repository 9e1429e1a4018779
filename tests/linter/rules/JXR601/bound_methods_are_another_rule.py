#: `nnx.remat` refuses them in any case (JXR602).
from flax import nnx


class Model(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def run(self, x):
        return nnx.gelu(self.norm(x))

    def __call__(self, x):
        return nnx.remat(self.norm.__call__)(nnx.remat(self.run)(x))
