"""netket: the energy of a transverse-field Ising chain, by samples of a restricted Boltzmann
machine, with complex parameters."""

import jax
import jax.numpy as jnp
import netket as nk

N = 16
hilbert = nk.hilbert.Spin(s=0.5, N=N)
hamiltonian = nk.operator.IsingJax(hilbert, graph=nk.graph.Chain(N), h=1.0)
model = nk.models.RBM(alpha=2, param_dtype=complex)


def loss(params, samples):
    log_psi = lambda s: model.apply({"params": params}, s)
    connected, elements = hamiltonian.get_conn_padded(samples)
    ratios = jnp.exp(log_psi(connected) - log_psi(samples)[..., None])
    local = jax.lax.stop_gradient(jnp.sum(elements * ratios, axis=-1))
    centered = local - local.mean()
    return 2 * jnp.real(jnp.mean(jnp.conj(centered) * log_psi(samples)))


def loss_inputs():
    samples = jnp.ones((64, N))
    return model.init(jax.random.PRNGKey(0), samples)["params"], samples
