from flax import nnx


def block(m, x, train):
    return m(x) * 2 if train else m(x)


def loss(m, x):
    return nnx.remat(block, static_argnums=(2,))(m, x, train=True).sum()
