#: jax 0.12
import jax


def policy():
    return jax.checkpoint_policies.SaveOnlyTheseNames("hidden")  # !
