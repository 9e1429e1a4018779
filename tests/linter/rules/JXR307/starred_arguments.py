from jax.ad_checkpoint import checkpoint_name


def tag(*args, **kwargs):
    return checkpoint_name(*args), checkpoint_name(args[0], **kwargs)
