import jax


def forward(layer, w, x, save_dots, remat):
    policy = None
    if save_dots:
        policy = jax.checkpoint_policies.dots_saveable
    if remat:
        layer = jax.checkpoint(layer, policy=policy)
    return layer(w, x)
