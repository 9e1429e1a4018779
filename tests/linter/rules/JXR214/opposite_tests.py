import jax


def forward(layer, ws, x, save_dots=True):
    policy = None
    if save_dots:
        policy = jax.checkpoint_policies.dots_saveable  # !
    if not save_dots:
        layer = jax.checkpoint(layer, policy=policy)
    for w in ws:
        x = layer(w, x)
    return x
