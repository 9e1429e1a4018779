import functools

import jax


per_layer = functools.partial(jax.checkpoint, prevent_cse=False)
