from jax import checkpoint as ckpt


class Trunk:
    def __call__(self, x):
        ckpt(self.block)  # !
        return self.block(x)
