import jax

triple = jax.checkpoint(lambda x, y, z: x * y * z)
