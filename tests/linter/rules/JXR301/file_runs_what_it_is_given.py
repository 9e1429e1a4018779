import jax


def make(layer):
    policy = jax.checkpoint_policies.save_only_these_names("attn_out")
    return jax.checkpoint(lambda w, x: layer(w, x), policy=policy)
