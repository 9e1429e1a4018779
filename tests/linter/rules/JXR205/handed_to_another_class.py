from remat import RematSpec

import jax

spec = RematSpec(policy=jax.checkpoint_policies.everything_saveable)
