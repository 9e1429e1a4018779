try:
    from jax.ad_checkpoint import checkpoint
except ImportError:
    from jax import checkpoint
