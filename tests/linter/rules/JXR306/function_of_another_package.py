import jax
from trainer.files import checkpoint_name


def body(c, w):
    return checkpoint_name(c @ w, "carry"), None


policy = jax.checkpoint_policies.save_only_these_names("carry")


def loss(ws, c):
    return jax.lax.scan(jax.checkpoint(body, policy=policy), c, ws)[0].sum()
