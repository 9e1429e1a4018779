import jax

remat = jax.checkpoint


def layer(f, x):
    return remat(f, prevent_cse=False)(x)
