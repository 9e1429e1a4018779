import jax


def loss(w, x):
    def net(x):
        return jax.nn.gelu(x @ w)

    return jax.checkpoint(net)(jax.lax.stop_gradient(x)).sum()
