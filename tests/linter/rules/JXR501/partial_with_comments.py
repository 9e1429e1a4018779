from functools import partial

import jax

saving = partial(
    jax.checkpoint,  # of every layer
    policy=jax.checkpoint_policies.dots_saveable,
)


@saving(  # !
    prevent_cse=False,  # scanned
)
def layer(w, x):
    return x @ w
