import jax  # noqa: F401, E501

f = jax.checkpoint
