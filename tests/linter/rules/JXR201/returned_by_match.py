import jax
import jax.ad_checkpoint


def policy_for(name):
    match name:
        case "dots":
            return jax.ad_checkpoint.checkpoint_policies.dots_saveable
        case "names":
            return jax.ad_checkpoint.checkpoint_policies.save_only_these_names  # !
    return None


either = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_saveable,
    jax.checkpoint_policies.save_only_these_names,  # !
)
