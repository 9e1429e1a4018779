import jax.ad_checkpoint


def policy_for(name):
    cp = jax.ad_checkpoint.checkpoint_policies
    return {
        "dots": cp.checkpoint_dots,
        "batch": cp.dots_with_no_batch_dims_saveable,
    }[name]
