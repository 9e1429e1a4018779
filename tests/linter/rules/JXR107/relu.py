import jax

activation = jax.checkpoint(jax.nn.relu)
