"""JXR845 and JXR846: vmaps in parts and Jacobians by the other mode, and what they take."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from peaks_by_xla import cases, peaks

import jaxresid
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import inspection
from jaxresid.inspector.subject import base
from jaxresid.results import answer

PARTS, MODE = "JXR845", "JXR846"


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def found(fun, *args, on="gpu:h100", **options):
    return [v for v in jaxresid.check(fun, on=on, **options)(*args) if v.code in (PARTS, MODE)]


def spectrum(x):
    pairs = jnp.sin(x[:, None] * x)
    return jnp.linalg.norm(jnp.cumsum(pairs @ pairs, 0) @ pairs, axis=1)


def network(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.sum(x)


def spectra(xs):
    return jax.vmap(spectrum)(xs)


def energies(ws, xs):
    def energy(ws, x):
        return jnp.trace(jax.hessian(network, argnums=1)(ws, x)) + jnp.sum(x**2)

    return jax.vmap(energy, (None, 0))(ws, xs)


NETWORK = [f32(16, 64), f32(64, 64)]


@pytest.mark.parametrize("jitted", [False, True])
def test_the_line_of_the_vmap_and_its_size(jitted):
    fun = jax.jit(spectra) if jitted else spectra
    (violation,) = found(fun, f32(512, 256))
    measured = violation.measured
    assert violation.span.row == spectra.__code__.co_firstlineno + 1
    assert (measured["size"], measured["transform"]) == (512, "vmap")
    assert measured["parts"] * measured["batch_size"] == 512
    assert measured["peak_nbytes"] < 0.2 * measured["peak_before_nbytes"]
    assert f"batch_size={measured['batch_size']})" in violation.help


@pytest.mark.integration
def test_a_program_that_does_not_fit_gets_the_biggest_parts_that_do():
    def fits(count):
        def mapped(xs):
            return jax.lax.map(spectrum, xs, batch_size=count)

        report = jaxresid.inspect(mapped, on="gpu:h100")(f32(2**17, 1024))
        return answer(report.peak.interval, report.place.memory_nbytes) == "fits"

    (violation,) = found(spectra, f32(2**17, 1024))
    assert violation.measured["fits"] == "fits"
    assert fits(violation.measured["batch_size"])
    assert not fits(2 * violation.measured["batch_size"])


def test_parts_of_a_part_that_does_not_fit():
    def mapped(xs):
        return jax.lax.map(spectrum, xs, batch_size=2**15)

    (violation,) = found(mapped, f32(2**17, 1024))
    assert violation.measured["transform"] == "map"
    assert violation.help.startswith("jax.lax.map(..., batch_size=")
    assert found(mapped, f32(2**17, 64)) == []


def through_a_gradient(ws, xs):
    return jnp.mean(jax.vmap(network, (None, 0))(ws, xs))


def narrow(ws, xs):
    return jnp.outer(jax.vmap(network, (None, 0))(ws, xs), jnp.ones(4096)).cumsum(0)


def of_a_named_axis(xs):
    return jax.vmap(lambda x: spectrum(x) / jax.lax.psum(x, "rows"), axis_name="rows")(xs)


SILENT = {
    "its residuals are kept anyway": (through_a_gradient, NETWORK, f32(4096, 16)),
    "it is not the peak": (narrow, NETWORK, f32(256, 16)),
    "an axis with a name": (of_a_named_axis, f32(512, 256)),
}


@pytest.mark.parametrize("name", SILENT)
def test_nothing_is_said_where(name):
    fun, *args = SILENT[name]
    assert found(fun, *args) == []


def test_nothing_is_traced_again_where_parts_take_little_off_the_peak(monkeypatch):
    def fail(*_):
        raise AssertionError

    monkeypatch.setattr(base.Subject, "retraced", fail)
    assert found(narrow, NETWORK, f32(256, 16)) == []
    assert found(through_a_gradient, [f32(16, 16)] * 12, f32(4096, 16)) == []
    with pytest.raises(AssertionError):
        found(spectra, f32(512, 256))


def test_what_a_mapped_gradient_keeps_is_mapped_in_parts():
    deep = [f32(64, 64)] * 8

    def largest(ws, xs):
        return jax.vmap(lambda x: jnp.max(jax.grad(network, argnums=1)(ws, x)))(xs)

    (violation,) = found(largest, deep, f32(2**14, 64))
    assert violation.measured["size"] == 2**14


@pytest.mark.integration
def test_a_local_energy_of_second_order():
    (violation,) = found(energies, NETWORK, f32(2048, 16))
    assert violation.measured["size"] == 2048
    assert "lambda x: f(params, x)" in violation.help


@pytest.mark.integration
def test_what_is_compiled_computes_the_same():
    args = [jax.random.normal(jax.random.key(i), s.shape) / 4 for i, s in enumerate(NETWORK)]
    xs = jax.random.normal(jax.random.key(2), (256, 16))
    (proposal,) = inspection(Question(energies, (args, xs))).proposals
    made = proposal.changed().trace.lowerable()
    (got,) = jax.jit(lambda *leaves: list(made.run(leaves)))(*args, xs)
    np.testing.assert_allclose(got, jax.jit(energies)(args, xs), rtol=1e-4, atol=1e-4)


@pytest.mark.integration
def test_a_loss_that_maps_with_no_gradient_through_it():
    def loss(ws, xs):
        weights = jax.lax.stop_gradient(energies(ws, xs))
        return jnp.mean(weights * jax.vmap(network, (None, 0))(ws, xs))

    (violation,) = found(loss, NETWORK, f32(2048, 16))
    assert violation.span.row == energies.__code__.co_firstlineno + 4


# -- Jacobians -----------------------------------------------------------------------------------


def curve(x, times):
    return jnp.sin(jnp.cumsum(jnp.tanh(times * x[0]) * x[1]))


def by_rows(x, times):
    return jax.jacrev(curve)(x, times)


def by_columns(x, times):
    return jax.jacfwd(lambda times: jnp.stack([jnp.sum(curve(x, times)), times[0]]))(times)


def square(x, times):
    return jax.jacrev(lambda times: curve(x, times))(times)


def square_by_columns(x, times):
    return jax.jacfwd(lambda times: curve(x, times))(times)


@pytest.mark.parametrize(
    ("fun", "sizes"), [(by_rows, ("jacrev", 2, 1024)), (by_columns, ("jacfwd", 1024, 2))]
)
def test_a_jacobian_by_the_other_mode(fun, sizes):
    (violation,) = found(fun, f32(2), f32(1024))
    measured = violation.measured
    assert violation.code == MODE
    assert violation.span.row == fun.__code__.co_firstlineno + 1
    assert (measured["transform"], measured["inputs"], measured["outputs"]) == sizes
    assert measured["peak_nbytes"] < 0.1 * measured["peak_before_nbytes"]
    assert measured["flops"] < 0.1 * measured["flops_before"]


@pytest.mark.parametrize("fun", [square, square_by_columns])
def test_a_square_jacobian_has_no_better_mode(fun):
    assert MODE not in {v.code for v in found(fun, f32(2), f32(1024))}


def test_a_jacobian_that_cannot_be_pushed_forward():
    @jax.custom_vjp
    def own(x, times):
        return curve(x, times)

    own.defvjp(lambda x, times: (curve(x, times), x), lambda x, g: (x * g[0], g))
    codes = {v.code for v in found(jax.jacrev(own), f32(2), f32(1024))}
    assert MODE not in codes


@pytest.mark.integration
def test_a_jacobian_of_equinox():
    eqx = pytest.importorskip("equinox")
    model = eqx.filter_eval_shape(lambda: eqx.nn.MLP(3, 1024, 256, 2, key=jax.random.key(0)))

    def jacobians(model, xs):
        return eqx.filter_vmap(eqx.filter_jacrev(model))(xs)

    (violation,) = found(jacobians, model, f32(32, 3))
    assert violation.code == MODE
    assert violation.span.row == jacobians.__code__.co_firstlineno + 1
    assert (violation.measured["inputs"], violation.measured["outputs"]) == (3, 1024)


@pytest.mark.integration
def test_per_example_gradients_of_flax():
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.avg_pool(nn.relu(nn.Conv(32, (3, 3))(x)), (2, 2), (2, 2))
            return nn.Dense(10)(x.reshape(x.shape[0], -1))

    def norms(params, xs):
        def norm(x):
            gradient = jax.grad(lambda p: jnp.sum(Net().apply(p, x[None]) ** 2))(params)
            return jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))

        return jax.vmap(norm)(xs)

    params = jax.eval_shape(Net().init, jax.random.key(0), f32(1, 32, 32, 3))
    (violation,) = found(norms, params, f32(2048, 32, 32, 3))
    assert violation.code == PARTS
    assert (violation.measured["size"], "`norm`" in violation.message) == (2048, True)


# -- against compilers ---------------------------------------------------------------------------


def mapped_spectra(count):
    if count:
        return lambda xs: jax.lax.map(spectrum, xs, batch_size=count), (f32(4096, 512),)
    return spectra, (f32(4096, 512),)


def mapped_hessian(count):
    """Local energies of 4096 walkers, as Monte Carlo codes take them."""
    network = [f32(96, 256), f32(256, 256), f32(256, 1)]
    if not count:
        return energies, (network, f32(4096, 96))

    def parts(ws, xs):
        def one(x):
            return energies(ws, x[None])[0]

        return jax.lax.map(one, xs, batch_size=count)

    return parts, (network, f32(4096, 96))


def jacobian(forward):
    def program(x, times):
        return (jax.jacfwd if forward else jax.jacrev)(curve)(x, times)

    return program, (f32(2), f32(16384))


GATE = [
    (mapped_spectra, "gpu:h100"),
    (mapped_spectra, "tpu:v5e"),
    (mapped_hessian, "gpu:h100"),
    (mapped_hessian, "tpu:v5e"),
]


@pytest.mark.parametrize(("program", "on"), cases([mapped_spectra, mapped_hessian], GATE))
def test_parts_lower_xla_s_peak(program, on):
    made = peaks(program, PARTS, on, by_hand=lambda measured: measured["batch_size"])
    assert made.fall > 0.6
    assert made.estimated_fall > 0.6


@pytest.mark.parametrize(("program", "on"), cases([jacobian], [(jacobian, "gpu:h100")]))
def test_the_other_mode_lowers_xla_s_peak(program, on):
    made = peaks(program, MODE, on)
    assert made.fall > 0.6
    assert made.estimated_fall > 0.6


def test_subjects_are_traced_again_as_they_are():
    subject = inspection(Question(spectra, (f32(64, 64),))).subject
    assert subject.step is not None
    made = subject.retraced(contextlib.nullcontext)
    assert made.figures.peak_nbytes == subject.peak.nbytes


def clipped(gradients):
    norms = jnp.sqrt(jnp.sum(gradients**2, (-2, -1), keepdims=True))
    return gradients / jnp.maximum(1, norms)


def private_step(params, xs, gradients_of):
    """Per-example gradients that are clipped and summed up, as of DP-SGD."""
    gradients = gradients_of(jax.grad(lambda p, x: jnp.sum(jnp.tanh(x @ p) ** 2)), params, xs)
    return params - 0.1 * clipped(gradients).sum(0)


def at_once(gradient, params, xs):
    return jax.vmap(gradient, (None, 0))(params, xs)


def in_parts(gradient, params, xs):
    return jax.lax.map(lambda x: gradient(params, x), xs, batch_size=8)


def test_gradients_of_examples_that_parts_would_stack_again_are_not_mapped_in_parts():
    """Only a running sum over parts takes less: 4.6 MiB by XLA:CPU."""
    args = f32(256, 256), f32(64, 256)

    def temporaries(gradients_of):
        step = functools.partial(private_step, gradients_of=gradients_of)
        return jax.jit(step).lower(*args).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(in_parts) >= temporaries(at_once) > 15 << 20
    for on in ("gpu:h100", "tpu:v5e"):
        step = functools.partial(private_step, gradients_of=at_once)
        assert found(step, *args, on=on) == []
