import jax


@jax.checkpoint  # !
def advantages(values, rewards):
    deltas = jax.nn.tanh(rewards - values)
    return jax.lax.stop_gradient(deltas), jax.lax.stop_gradient(values)
