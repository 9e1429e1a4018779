from flax import nnx


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(8, 32, rngs=rngs)
        self.down = nnx.Linear(32, 8, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(x)))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.vmap(Block, in_axes=0)(rngs.fork(split=3))

    def __call__(self, x):
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        @nnx.remat  # !
        def forward(block, x):
            return block(x)

        return forward(self.blocks, x)
