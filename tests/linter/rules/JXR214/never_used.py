import jax


def forward(layer, ws, x):
    policy: object = jax.checkpoint_policies.dots_saveable  # !
    layer = jax.checkpoint(layer)
    for w in ws:
        x = layer(w, x)
    return x
