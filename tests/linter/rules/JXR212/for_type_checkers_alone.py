from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from jax.checkpoint_policies import Policy

policy: "Policy" = jax.checkpoint_policies.dots_saveable
