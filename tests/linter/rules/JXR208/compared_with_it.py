import jax


def is_it(policy):
    return policy is jax.checkpoint_policies.save_anything_except_these_names
