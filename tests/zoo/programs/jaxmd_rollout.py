"""jax-md: a trajectory of soft spheres differentiated by their diameter."""

import jax
import jax.numpy as jnp
from jax_md import energy, simulate, space

N, STEPS = 32, 10
displacement, shift = space.periodic(8.0)


def simulation(diameter, positions, key):
    energy_fn = energy.soft_sphere_pair(displacement, sigma=jnp.full((N, N), 1.0) * diameter)
    init, apply = simulate.nve(energy_fn, shift, 1e-3)
    state = init(key, positions, kT=0.1)
    state, _ = jax.lax.scan(
        jax.checkpoint(lambda s, _: (apply(s), None)), state, None, length=STEPS
    )
    return energy_fn(state.position)


def simulation_inputs():
    return jnp.float32(1.0), jnp.zeros((N, 2)), jax.random.PRNGKey(0)
