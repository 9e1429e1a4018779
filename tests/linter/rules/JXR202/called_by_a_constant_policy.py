import jax

cp = jax.checkpoint_policies


def mine(prim, *_, **__):
    return cp.nothing_saveable()


nothing = lambda *_, **__: cp.nothing_saveable()
