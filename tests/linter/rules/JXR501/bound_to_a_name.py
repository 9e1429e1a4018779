import jax


per_layer = jax.checkpoint(prevent_cse=False)  # !
