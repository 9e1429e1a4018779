import jax


def forces(energy, pos):
    return -jax.grad(jax.checkpoint(energy))(pos)
