from jax import checkpoint_policies as cp


def policy(names, more):
    if len(names) > 0:
        return cp.save_anything_except_these_names(*names)  # !
    names.append(more)
    if names:
        return cp.nothing_saveable
    else:
        names.append(more)
        return cp.save_anything_except_these_names(*names)  # !
