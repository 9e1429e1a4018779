import jax

cp = jax.checkpoint_policies


def run(layer, w, x, factory=cp.save_only_these_names):
    return jax.checkpoint(layer, policy=factory("a"))(w, x)
