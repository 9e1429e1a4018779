import functools

import jax

make = functools.partial(
    jax.checkpoint_policies.save_and_offload_only_these_names,
    names_which_can_be_saved="attn, mlp",  # !
)
