"""JXR7, what changes with `jax_remat3`."""

import jax
import jax.numpy as jnp

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


CLAIMS = {
    "JXR701": (
        Claim(_asked, remat3=False),
        Claim(_asked, example="lambda_in_a_decorator", remat3=False),
        Claim(_not_asked, remat3=True),
        Claim(_not_asked, example="lambda_in_a_decorator", remat3=True),
        Claim(_asked, source=NAMED, remat3=False),
        Claim(_asked, source=NAMED, since=(0, 12), remat3=True),
        Claim(_products, source=PRODUCTS, since=(0, 12)),
    ),
}
