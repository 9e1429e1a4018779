"""JXR7, what changes with `jax_remat3`."""

import jax
import jax.numpy as jnp
import pytest

from claims import Claim, saved

X = jnp.full((4,), 0.5)
W = jnp.full((4, 4), 0.1)


def _asked(namespace):
    """The values of `sin` are kept, two of them besides the argument."""
    assert len(saved(namespace["run"], X)) == 2


def _not_asked(namespace):
    assert saved(namespace["run"], X) == []


NAMED = """
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

def block(x):
    x = checkpoint_name(jnp.sin(x), "sin")
    x = checkpoint_name(jnp.sin(x), "sin")
    return jnp.sin(x)

run = jax.checkpoint(block, policy=jax.checkpoint_policies.save_only_these_names("sin"))
"""
PRODUCTS = """
import jax
import jax.numpy as jnp
asked = set()

def policy(prim, *_, **params):
    asked.add(str(prim))
    return str(prim) == "dot_general"

def run(w, x):
    return jnp.sin(jnp.sin(x @ w) @ w)
"""


def _products(namespace):
    """A function is asked about matrix products, under both."""
    run, policy = namespace["run"], namespace["policy"]
    mine = saved(jax.checkpoint(run, policy=policy), W, X)
    dots = jax.checkpoint_policies.dots_saveable
    assert mine == saved(jax.checkpoint(run, policy=dots), W, X) != []
    assert "dot_general" in namespace["asked"]
    remat3 = bool(getattr(jax.config, "jax_remat3", False))
    assert ("sin" in namespace["asked"]) != remat3


def _list_raises(namespace):
    with pytest.raises(TypeError, match="static_argnums"):
        namespace["run"](X, True)
    wrapped = jax.checkpoint(namespace["f"], static_argnums=(1,))
    assert jnp.allclose(wrapped(X, True), jnp.sin(X))


def _list_accepted(namespace):
    assert jnp.allclose(namespace["run"](X, True), jnp.sin(X))


LINEN = """
import flax.linen as nn
import jax.numpy as jnp

class Block(nn.Module):
    @nn.compact
    def __call__(self, x, flag):
        return nn.Dense(4)(x) if flag else x
"""


def _linen(namespace):
    import flax.linen as nn
    from flax.linen import partitioning

    block, key = namespace["Block"], jax.random.key(0)
    partitioning.remat(block, static_argnums=[1])().init(key, X, True)
    nn.remat(block, static_argnums=(2,))().init(key, X, True)
    if getattr(jax.config, "jax_remat3", False):
        nn.remat(block, static_argnums=[2])().init(key, X, True)
    else:
        with pytest.raises(TypeError, match="static_argnums"):
            nn.remat(block, static_argnums=[2])().init(key, X, True)


def _both(namespace):
    w = X + 1
    assert jnp.allclose(namespace["run"](w, X, True), jnp.sin(w * X))
    gradient = jax.grad(lambda x: namespace["run"](w, x, True).sum())(X)
    assert jnp.allclose(gradient, w * jnp.cos(w * X))


def _refused(namespace):
    with pytest.raises(NotImplementedError, match="prevent_cse"):
        namespace["run"](X, X, True)
    right = jax.checkpoint(lambda w, x: jnp.sin(w * x), prevent_cse=(True, False))
    assert jnp.allclose(right(X, X), jnp.sin(X * X))


CLAIMS = {
    "JXR701": (
        Claim(_asked, bad=0, remat3=False),
        Claim(_asked, bad=1, remat3=False),
        Claim(_not_asked, bad=0, remat3=True),
        Claim(_not_asked, bad=1, remat3=True),
        Claim(_asked, source=NAMED, remat3=False),
        Claim(_asked, source=NAMED, since=(0, 12), remat3=True),
        Claim(_products, source=PRODUCTS, since=(0, 12)),
    ),
    "JXR702": (
        Claim(_list_raises, bad=0, remat3=False),
        Claim(_list_accepted, bad=0, remat3=True),
        Claim(_linen, source=LINEN, needs=("flax",)),
    ),
    "JXR703": (
        Claim(_both, bad=0, remat3=False),
        Claim(_both, bad=1, since=(0, 9, 1), remat3=False),
        Claim(_refused, bad=0, since=(0, 11), remat3=True),
        Claim(_refused, bad=1, since=(0, 11), remat3=True),
    ),
}
