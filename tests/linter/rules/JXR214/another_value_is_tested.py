import jax


def forward(layer, ws, x, remat="full"):
    policy = jax.checkpoint_policies.nothing_saveable
    if remat == "names":
        policy = jax.checkpoint_policies.save_only_these_names("h")  # !
    if remat == "full":
        layer = jax.checkpoint(layer, policy=policy)
    for w in ws:
        x = layer(w, x)
    return x
