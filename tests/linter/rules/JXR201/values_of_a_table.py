import jax

cp = jax.checkpoint_policies
TABLE = {
    "nothing": cp.nothing_saveable,
    "named": cp.save_only_these_names("out"),
    "others": cp.save_any_names_but_these,  # !
}
CHOICES = [cp.dots_saveable, cp.save_and_offload_only_these_names]  # !
