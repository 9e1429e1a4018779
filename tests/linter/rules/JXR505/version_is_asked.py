import jax

if jax.__version_info__ < (0, 10):
    from jax.ad_checkpoint import checkpoint
else:
    from jax import checkpoint
