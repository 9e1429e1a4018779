import jax
from module import shift


class Stage:
    def __init__(self, w, x):
        self.shift = shift(w, x)

    @jax.checkpoint
    def __call__(self, x):
        return self.shift(x)


def run(w, x):
    return Stage(w, x)(x)
