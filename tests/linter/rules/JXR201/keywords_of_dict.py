import jax


def policy_for(name):
    table = dict(
        dots=jax.checkpoint_policies.dots_saveable,
        names=jax.checkpoint_policies.save_only_these_names,  # !
        both=jax.checkpoint_policies.save_from_both_policies,  # !
    )
    return table[name]
