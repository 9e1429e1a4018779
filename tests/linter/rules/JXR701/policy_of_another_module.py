import jax
import jax.numpy as jnp


from policies import mine

run = jax.checkpoint(jnp.sin, policy=mine)
