import jax

NAME = "attn"
policy = jax.checkpoint_policies.save_any_names_but_these(NAME, f"{NAME}_out")
