import jax

cp = jax.checkpoint_policies


def run(layer, w, x, **options):
    def body(w, x):
        return jax.checkpoint(layer, policy=cp.dots_saveable)(w, x)

    return jax.checkpoint(body, **options)(w, x)
