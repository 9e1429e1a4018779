try:
    from jax import remat
except ImportError:
    from jax.ad_checkpoint import remat
