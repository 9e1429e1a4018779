import jax
from settings import config_for_function

cp = jax.checkpoint_policies
spec = dict(policy=config_for_function(cp.save_only_these_names).set(names=["a"]))
