"""JXR308 of a trace: names that a custom_vjp hides from a policy, and what they cost."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from peaks_by_xla import peaks

import jaxresid
from jaxresid import jax_compat
from tests.small import f32

L, N, D = 4, 1024, 64
POLICIES = jax.checkpoint_policies
NAMES = POLICIES.save_only_these_names("hidden", "out")


def compute(x, w, named=True):
    hidden = jnp.tanh(x @ w)
    out = hidden @ w
    if named:
        return checkpoint_name(out, "out"), checkpoint_name(hidden, "hidden")
    return out, hidden


def with_rule(forward):
    """Return a function with its own backward pass, which reads what `forward` computes."""

    @jax.custom_vjp
    def block(x, w):
        return compute(x, w)

    def run(x, w):
        out, hidden = forward(block)(x, w)
        return (out, hidden), (x, w, hidden, out)

    def backward(kept, cotangents):
        x, w, hidden, out = kept
        inner = (cotangents[0] + 1e-3 * out) @ w.T * (1 - hidden * hidden)
        return inner @ w.T, hidden.T @ cotangents[0] + x.T @ inner

    block.defvjp(run, backward)
    return block


def itself(block):
    return block


def named(block):
    return compute


def unnamed(block):
    return lambda x, w: compute(x, w, named=False)


def other(block):
    """Call another function with a rule, and that in a jitted function."""
    return jax.jit(with_rule(named))


def scanned(forward, policy=NAMES, width=D, layers=L, rows=N):
    block = with_rule(forward)

    def loss(ws, x):
        def layer(x, w):
            return x + jnp.sin(block(x, w)[0]), None

        return jnp.sum(jax.lax.scan(jax.checkpoint(layer, policy=policy), x, ws)[0] ** 2)

    return loss, (f32(layers, width, width), f32(rows, width))


def as_step(loss):
    def step(ws, x):
        value, gradient = jax.value_and_grad(loss)(ws, x)
        return ws - 0.1 * gradient, value

    return step


def found(fun, args, **options):
    violations = jaxresid.check(fun, on="gpu:h100", **options)(*args)
    return [v for v in violations if v.code == "JXR308"]


ARGS = scanned(named)[1]


@pytest.mark.skipif(
    bool(jax_compat.flags().get("jax_remat3")),
    reason="a policy sees no name in a forward rule there, and there is nothing to say",
)
@pytest.mark.parametrize(
    ("forward", "wrap"),
    [
        (itself, lambda f: f),
        pytest.param(unnamed, lambda f: f, marks=pytest.mark.integration),
        pytest.param(other, lambda f: f, marks=pytest.mark.integration),
        pytest.param(itself, as_step, marks=pytest.mark.integration),
    ],
)
def test_the_figures_are_those_of_names_in_the_rule(forward, wrap):
    fun, args = scanned(forward)
    (violation,) = found(wrap(fun), args)
    before, after = (
        jaxresid.inspect(wrap(f), on="gpu:h100")(*args) for f in (fun, scanned(named)[0])
    )
    measured = violation.measured
    assert measured["names"] == ["hidden", "out"]
    assert measured["peak_before_nbytes"] == before.peak.nbytes
    assert measured["peak_nbytes"] == after.peak.nbytes
    assert measured["kept_nbytes"] == after.totals.computed_nbytes > before.totals.computed_nbytes
    fewer = after.cost.total.flops - before.cost.total.flops
    assert fewer < 0
    assert measured["flops"] - measured["flops_before"] == pytest.approx(fewer, rel=0.01)
    assert measured["recompute_flops"] == 0
    assert violation.span.row == compute.__code__.co_firstlineno + 4
    assert ("calls a custom_vjp function" in violation.message) == (forward is not unnamed)


def no_checkpoint(ws, x):
    block = with_rule(itself)
    return jnp.sum(jax.lax.scan(lambda x, w: (x + block(x, w)[0], None), x, ws)[0] ** 2)


def no_rule(ws, x):
    layer = jax.checkpoint(lambda x, w: (x + jnp.sin(compute(x, w)[0]), None), policy=NAMES)
    return jnp.sum(jax.lax.scan(layer, x, ws)[0] ** 2)


def rule_outside(ws, x):
    """Call a custom_vjp function outside of the checkpoint."""
    block = with_rule(itself)
    layer = jax.checkpoint(lambda x: jnp.sin(checkpoint_name(jnp.tanh(x), "out")), policy=NAMES)
    return jnp.sum(jax.lax.scan(lambda x, w: (layer(block(x, w)[0]), None), x, ws)[0] ** 2)


def linear_rule(ws, x):
    """Keep nothing that is named: to name it saves no FLOPs."""

    @jax.custom_vjp
    def scale(x, w):
        return checkpoint_name(x * 2.0, "out")

    scale.defvjp(lambda x, w: (scale(x, w), w), lambda w, g: (2 * g, jnp.zeros_like(w)))
    layer = jax.checkpoint(lambda x, w: (jnp.sin(scale(x, w) @ w), None), policy=NAMES)
    return jnp.sum(jax.lax.scan(layer, x, ws)[0] ** 2)


def custom_jvp(ws, x):
    """Name a value in a custom_jvp function, whose rule names it as well."""

    @jax.custom_jvp
    def act(x):
        return checkpoint_name(jnp.tanh(x), "out")

    act.defjvps(lambda t, y, x: t * (1 - y * y))
    layer = jax.checkpoint(lambda x, w: (act(x @ w), None), policy=NAMES)
    return jnp.sum(jax.lax.scan(layer, x, ws)[0] ** 2)


def only(*names):
    return POLICIES.save_only_these_names(*names)


SILENT = {
    "named in the rule": scanned(named),
    "no policy": scanned(itself, None),
    "other names": scanned(itself, only("attention")),
    "a policy of matmuls": scanned(itself, POLICIES.dots_saveable),
    "all but a name": scanned(itself, POLICIES.save_anything_except_these_names("hidden")),
    "everything": scanned(itself, POLICIES.everything_saveable),
    "no checkpoint": (no_checkpoint, ARGS),
    "no custom_vjp": (no_rule, ARGS),
    "custom_vjp outside": (rule_outside, ARGS),
    "nothing is spared": (linear_rule, ARGS),
    "custom_jvp": (custom_jvp, ARGS),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", SILENT)
def test_it_is_silent(name):
    assert not found(*SILENT[name])


@pytest.mark.gpu
@pytest.mark.programs
def test_the_peak_of_xla_moves_as_well():
    def program(forward):
        return scanned(forward, width=1024, rows=32768)

    made = peaks(program, "JXR308", "gpu:h100", itself, lambda measured: named)
    risen = made.estimated_after - made.estimated_before
    assert made.after - made.before == pytest.approx(risen, rel=0.15)
    assert risen > 0
