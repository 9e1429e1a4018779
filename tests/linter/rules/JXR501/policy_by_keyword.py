import jax


def loss(layer, policy, x):
    return jax.checkpoint(layer, policy=policy)(x).sum()
