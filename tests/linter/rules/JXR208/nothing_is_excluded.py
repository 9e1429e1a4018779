from jax import checkpoint_policies as cp


def policy(names, kept):
    if len(names) > 0:
        return cp.save_only_these_names(*kept)
    elif kept:
        p = cp.save_only_these_names(*kept)
        return cp.save_from_both_policies(p, cp.save_anything_except_these_names(*names))
    else:
        return cp.save_anything_except_these_names(*names)
