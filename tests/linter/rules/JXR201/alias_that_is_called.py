import jax

save = jax.checkpoint_policies.save_only_these_names


def run(layer, w, x, config):
    return jax.checkpoint(layer, policy=save(*config.names))(w, x)
