def choose(checkpoint_policies):
    return checkpoint_policies.dots_and_names
