try:
    from jax.ad_checkpoint import checkpoint_name
except ImportError:
    from jax._src.ad_checkpoint import checkpoint_name
