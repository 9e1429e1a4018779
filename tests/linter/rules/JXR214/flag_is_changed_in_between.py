import jax


def forward(layer, w, x, kind):
    if kind == "dots":
        policy = jax.checkpoint_policies.dots_saveable
        kind = "any"
    else:
        policy = None
    if kind == "any":
        layer = jax.checkpoint(layer, policy=policy)
    return layer(w, x)
