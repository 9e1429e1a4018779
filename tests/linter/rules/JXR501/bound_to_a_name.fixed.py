import jax
import functools


per_layer = functools.partial(jax.checkpoint, prevent_cse=False)
