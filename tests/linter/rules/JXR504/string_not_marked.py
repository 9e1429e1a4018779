import jax


def layer(x, activation="relu"):
    return jax.nn.relu(x) if activation == "relu" else jax.nn.gelu(x)


def loss(x, activation: str = "gelu"):
    return jax.checkpoint(layer)(x, activation).sum()  # !
