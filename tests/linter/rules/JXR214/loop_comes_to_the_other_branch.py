import jax


def forward(layer, w, x, words):
    policy = None
    for word in words:
        if word == "dots":
            policy = jax.checkpoint_policies.dots_saveable
        else:
            layer = jax.checkpoint(layer, policy=policy)
    return layer(w, x)
