import jax

project = jax.checkpoint(lambda w, x: x @ w)  # !
