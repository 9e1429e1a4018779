"""gpjax: the negative marginal likelihood of a Gaussian process."""

import gpjax as gpx
import jax.numpy as jnp
from flax import nnx

X, Y = jnp.linspace(0, 1, 64)[:, None], jnp.zeros((64, 1))
prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Zero(), kernel=gpx.kernels.RBF())
posterior = prior * gpx.likelihoods.Gaussian(num_datapoints=64)
graph, state, rest = nnx.split(posterior, gpx.parameters.Parameter, ...)


def loss(state, x, y):
    model = nnx.merge(graph, state, rest)
    return -gpx.objectives.conjugate_mll(model, gpx.Dataset(X=x, y=y))


def loss_inputs():
    return state, X, Y
