"""diffrax: a neural ODE, differentiated through the solver with its recursive checkpoints."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class Func(eqx.Module):
    mlp: eqx.nn.MLP

    def __call__(self, t, y, args):
        return self.mlp(y)


class NeuralODE(eqx.Module):
    func: Func

    def __init__(self, key):
        self.func = Func(eqx.nn.MLP(8, 8, 64, 2, activation=jax.nn.softplus, key=key))

    def __call__(self, ts, y0):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(self.func),
            diffrax.Tsit5(),
            t0=ts[0],
            t1=ts[-1],
            dt0=ts[1] - ts[0],
            y0=y0,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
            saveat=diffrax.SaveAt(ts=ts),
            max_steps=64,
        )
        return solution.ys


optimizer = optax.adabelief(1e-3)


@eqx.filter_value_and_grad
def grad_loss(model, ts, ys):
    predicted = jax.vmap(model, in_axes=(None, 0))(ts, ys[:, 0])
    return jnp.mean((ys - predicted) ** 2)


@eqx.filter_jit
def make_step(ts, ys, model, opt_state):
    loss, grads = grad_loss(model, ts, ys)
    updates, opt_state = optimizer.update(grads, opt_state)
    return loss, eqx.apply_updates(model, updates), opt_state


def make_step_inputs():
    model = NeuralODE(jax.random.key(0))
    opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    return jnp.linspace(0.0, 1.0, 16), jnp.zeros((8, 16, 8)), model, opt_state


def trees():
    ts, ys, model, opt_state = make_step_inputs()
    return {
        "parameters": eqx.filter(model, eqx.is_array),
        "optimizer-state": opt_state,
        "batch": (ts, ys),
    }


def objective():
    ts, ys, model, _ = make_step_inputs()
    arrays, static = eqx.partition(model, eqx.is_inexact_array)

    def of(arrays, ts, ys):
        predicted = jax.vmap(eqx.combine(arrays, static), in_axes=(None, 0))(ts, ys[:, 0])
        return jnp.mean((ys - predicted) ** 2)

    return of, (arrays, ts, ys)
