import jax

KNOWN = jax.checkpoint_policies.__dict__
jax.checkpoint_policies.of_mine = lambda prim, *_, **__: False
MINE = jax.checkpoint_policies.of_mine
