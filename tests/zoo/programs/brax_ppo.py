"""brax: one minibatch step of PPO, with brax's networks, loss and gradient update."""

import functools

import jax
import jax.numpy as jnp
import optax
from brax.training import gradients, types
from brax.training.acme import running_statistics
from brax.training.agents.ppo import losses, networks

OBSERVATIONS, ACTIONS, BATCH, UNROLL = 24, 6, 32, 8
network = networks.make_ppo_networks(
    OBSERVATIONS, ACTIONS, preprocess_observations_fn=running_statistics.normalize
)
loss_fn = functools.partial(losses.compute_ppo_loss, ppo_network=network)
optimizer = optax.adam(3e-4)
update = gradients.gradient_update_fn(loss_fn, optimizer, pmap_axis_name=None, has_aux=True)


def minibatch_step(params, optimizer_state, normalizer, data, key):
    (_, metrics), params, optimizer_state = update(
        params, normalizer, data, key, optimizer_state=optimizer_state
    )
    return params, optimizer_state, metrics


def minibatch_step_inputs():
    a, b, c = jax.random.split(jax.random.PRNGKey(0), 3)
    params = losses.PPONetworkParams(
        policy=network.policy_network.init(a), value=network.value_network.init(b)
    )
    normalizer = running_statistics.init_state(jnp.zeros((OBSERVATIONS,)))
    one, obs = jnp.zeros((BATCH, UNROLL)), jnp.zeros((BATCH, UNROLL, OBSERVATIONS))
    action = jnp.zeros((BATCH, UNROLL, ACTIONS))
    logits = jnp.zeros((BATCH, UNROLL, 2 * ACTIONS))
    data = types.Transition(
        observation=obs,
        action=action,
        reward=one,
        discount=one,
        next_observation=obs,
        extras={
            "policy_extras": {"raw_action": action, "log_prob": one, "distribution_params": logits},
            "state_extras": {"truncation": one},
        },
    )
    return params, optimizer.init(params), normalizer, data, c


def trees():
    params, optimizer_state, *rest = minibatch_step_inputs()
    return {"parameters": params, "others": (optimizer_state, rest)}


def objective():
    params, _, *rest = minibatch_step_inputs()
    return lambda *args: loss_fn(*args)[0], (params, *rest)
