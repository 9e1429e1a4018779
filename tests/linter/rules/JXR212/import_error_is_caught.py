try:
    from jax.checkpoint_policies import dots_saveable
except ImportError:
    from jax import checkpoint_policies

    dots_saveable = checkpoint_policies.dots_saveable
