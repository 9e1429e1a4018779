from flax.linen import Dense, Module, checkpoint, compact


class Block(Module):
    @compact
    def __call__(self, x):
        return Dense(4)(x)


class Model(Module):
    remat: bool = False

    @compact
    def __call__(self, x):
        block = Block
        if self.remat:
            block = checkpoint(block, prevent_cse=False)
        return block()(x)  # !
