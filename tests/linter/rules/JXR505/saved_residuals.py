from jax.ad_checkpoint import saved_residuals  # !


def show(f, x):
    return saved_residuals(f, x)
