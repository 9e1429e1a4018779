"""blackjax: mean-field variational inference of a logistic regression, one step."""

import blackjax
import jax
import jax.numpy as jnp
import optax

X, Y = jnp.ones((256, 32)), jnp.zeros((256,))


def logdensity(w):
    logits = X @ w["w"] + w["b"]
    return jnp.sum(Y * logits - jnp.logaddexp(0.0, logits)) - jnp.sum(w["w"] ** 2)


vi = blackjax.meanfield_vi(logdensity, optax.adam(1e-2), num_samples=16)


def step(key, state):
    return vi.step(key, state)


def step_inputs():
    return jax.random.key(0), vi.init({"w": jnp.zeros((32,)), "b": jnp.zeros(())})


def trees():
    key, state = step_inputs()
    return {"parameters": (state.mu, state.rho), "optimizer-state": state.opt_state, "batch": key}
