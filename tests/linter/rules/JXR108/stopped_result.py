import jax


def targets(net, w, x):
    return jax.lax.stop_gradient(jax.checkpoint(net)(w, x))  # !
