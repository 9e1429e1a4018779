"""flowjax: a masked autoregressive flow, one step of its maximum likelihood fit."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flowjax.distributions import Normal
from flowjax.flows import coupling_flow
from flowjax.train.losses import MaximumLikelihoodLoss
from flowjax.train.train_utils import step as flow_step

optimizer = optax.adam(1e-3)
loss_fn = MaximumLikelihoodLoss()


def flow():
    return coupling_flow(
        jax.random.key(0), base_dist=Normal(jnp.zeros(8)), flow_layers=2, nn_width=32
    )


def step(params, static, opt_state, x):
    return flow_step(params, static, x, optimizer=optimizer, opt_state=opt_state, loss_fn=loss_fn)


def step_inputs():
    params, static = eqx.partition(flow(), eqx.is_inexact_array)
    return params, static, optimizer.init(params), jnp.zeros((64, 8))


def trees():
    params, static, opt_state, x = step_inputs()
    others = [leaf for leaf in jax.tree.leaves(static) if hasattr(leaf, "dtype")]
    return {"parameters": params, "others": (opt_state, x, others)}


def objective():
    params, static, _, x = step_inputs()
    return lambda params, x: loss_fn(params, static, x), (params, x)
