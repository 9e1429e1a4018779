"""numpyro: a variational autoencoder trained by stochastic variational inference, `svi.update`."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.example_libraries import stax
from numpyro.infer import SVI, Trace_ELBO


def encoder(hidden, z):
    return stax.serial(
        stax.Dense(hidden),
        stax.Softplus,
        stax.FanOut(2),
        stax.parallel(stax.Dense(z), stax.serial(stax.Dense(z), stax.Exp)),
    )


def decoder(hidden, out):
    return stax.serial(stax.Dense(hidden), stax.Softplus, stax.Dense(out), stax.Sigmoid)


def model(batch):
    decode = numpyro.module("decoder", decoder(128, 256), (batch.shape[0], 16))
    with numpyro.plate("batch", batch.shape[0]):
        z = numpyro.sample("z", dist.Normal(0, 1).expand([16]).to_event(1))
        image = decode(z)
        return numpyro.sample("obs", dist.Bernoulli(image).to_event(1), obs=batch)


def guide(batch):
    encode = numpyro.module("encoder", encoder(128, 16), (batch.shape[0], 256))
    loc, std = encode(batch)
    with numpyro.plate("batch", batch.shape[0]):
        return numpyro.sample("z", dist.Normal(loc, std).to_event(1))


svi = SVI(model, guide, numpyro.optim.Adam(1e-3), Trace_ELBO())


def step(svi_state, batch):
    return svi.update(svi_state, batch)


def step_inputs():
    batch = jnp.zeros((64, 256))
    return svi.init(jax.random.PRNGKey(0), batch), batch


def trees():
    state, batch = step_inputs()
    params = svi.get_params(state)
    moments = (params, params)
    return {"parameters": params, "others": (moments, state.optim_state[0], state.rng_key, batch)}
