import jax.ad_checkpoint

TABLE = {
    "but": jax.ad_checkpoint.checkpoint_policies.save_anything_except_these_names("out"),  # !
}
