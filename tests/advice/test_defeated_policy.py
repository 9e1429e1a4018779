"""JXR840: matmuls that a vmap hides from a policy, and what the program takes with them saved."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxresid

S, L, N, D = 4, 3, 256, 64
POLICIES = jax.checkpoint_policies
NO_BATCH = POLICIES.dots_with_no_batch_dims_saveable
NAMES = POLICIES.save_only_these_names("up", "down")


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


WEIGHTS = f32(S, L, D, 4 * D), f32(S, L, 4 * D, D)
ARGS = WEIGHTS, f32(S, N, D)


def layer(x, w):
    h = jax.nn.gelu(checkpoint_name(x @ w[0], "up"))
    return x + jnp.tanh(checkpoint_name(h @ w[1], "down"))


def stage(weights, x, policy, layer=layer):
    def body(x, w):
        return jax.checkpoint(layer, policy=policy)(x, w), None

    return jax.lax.scan(body, x, weights)[0]


def stages(policy, wrap=lambda f: f, layer=layer):
    def loss(weights, x):
        return jnp.sum(jax.vmap(wrap(lambda ws, x: stage(ws, x, policy, layer)))(weights, x) ** 2)

    return loss


def pipeline(policy):
    """Shift activations from stage to stage, as MaxText's pipelines do."""

    def loss(weights, x):
        def trip(state, _):
            made = jax.vmap(lambda ws, x: stage(ws, x, policy))(weights, state)
            return jnp.roll(made, 1, axis=0), None

        return jnp.sum(jax.lax.scan(trip, x, None, length=S)[0] ** 2)

    return loss


def as_step(loss):
    def step(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    return step


@pytest.fixture(autouse=True)
def _nothing_traced_before():
    """JAX 0.7.0 gives a checkpoint that was traced before the lines of its first caller."""
    jax.clear_caches()


def found(fun, *args, code="JXR840"):
    return [v for v in jaxresid.check(fun, on="gpu:h100")(*args) if v.code == code]


@pytest.mark.parametrize(
    ("made", "wrap"),
    [
        (stages, lambda f: f),
        pytest.param(stages, jax.jit, marks=pytest.mark.integration),
        (stages, as_step),
        (lambda policy: stages(policy, jax.jit), lambda f: f),
        pytest.param(pipeline, lambda f: f, marks=pytest.mark.integration),
    ],
    ids=["plain", "jit", "step", "jit in vmap", "pipeline"],
)
def test_the_figures_are_those_of_the_names(made, wrap):
    (violation,) = found(wrap(made(NO_BATCH)), *ARGS)
    named, plain = (
        jaxresid.inspect(wrap(made(policy)), on="gpu:h100")(*ARGS) for policy in (NAMES, NO_BATCH)
    )
    measured = violation.measured
    assert (measured["hidden"], measured["saved"], measured["size"]) == (2, 0, S)
    assert measured["peak_before_nbytes"] == plain.peak.nbytes
    assert measured["peak_nbytes"] == named.peak.nbytes
    assert measured["kept_nbytes"] == named.totals.computed_nbytes
    less = named.cost.total.flops - plain.cost.total.flops
    assert measured["flops"] - measured["flops_before"] == pytest.approx(less, rel=1e-3)
    assert less < 0


def test_it_names_the_vmap_and_stands_for_the_verdict():
    loss = stages(NO_BATCH)
    violations = jaxresid.check(loss, on="gpu:h100")(*ARGS)
    (violation,) = [v for v in violations if v.code in ("JXR804", "JXR840")]
    assert violation.span.row == stage.__code__.co_firstlineno + 2
    assert violation.measured["vmap"].endswith(f":{loss.__code__.co_firstlineno + 1}")


def test_what_is_saved_nonetheless_is_counted():
    def loss(weights, x, shared):
        mixed = lambda x, w: layer(x @ shared, w)
        return stages(NO_BATCH, layer=mixed)(weights, x)

    (violation,) = found(loss, *ARGS, f32(D, D))
    assert (violation.measured["hidden"], violation.measured["saved"]) == (2, 1)


def test_a_policy_that_matches_nothing_as_written_either_is_a_verdict():
    def loss(weights, x):
        one = lambda ws, x: jnp.sin(jnp.einsum("bnd,bdf->bnf", jnp.sin(x), ws))
        return jnp.sum(jax.checkpoint(one, policy=NO_BATCH)(weights, x))

    args = f32(S, D, D), f32(S, N, D)
    assert found(loss, *args, code="JXR804")
    assert not found(loss, *args)


def shared(policy):
    """Map over examples with the same parameters."""

    def loss(weights, x):
        return jnp.sum(jax.vmap(lambda x: stage(weights, x, policy))(x) ** 2)

    return loss, (tuple(f32(*w.shape[1:]) for w in WEIGHTS), ARGS[1])


def experts(is_mapped):
    def expert(x, w):
        return jnp.tanh(jnp.einsum("end,edf->enf", jnp.sin(x), w)) + x

    def loss(weights, x):
        one = lambda x: stage(weights, x, NO_BATCH, expert)
        return jnp.sum((jax.vmap(one)(x) if is_mapped else one(x)) ** 2)

    x = f32(2, S, N, D) if is_mapped else f32(S, N, D)
    return loss, (f32(L, S, D, D), x)


def attention(x, w):
    """Attend with one head, in one example of a batch."""
    q, k, v = jnp.split(x @ w, 3, axis=-1)
    return x + jnp.sin(jax.nn.softmax(q @ k.T) @ v)


def attended():
    def loss(weights, x):
        return jnp.sum(jax.vmap(lambda x: stage(weights, x, NO_BATCH, attention))(x) ** 2)

    return loss, (f32(L, D, 3 * D), ARGS[1])


def heads():
    def block(x, w):
        q, k, v = jnp.split((x @ w).reshape(N, S, -1), 3, axis=-1)
        one = lambda q, k, v: jax.nn.softmax(q @ k.T) @ v
        return x + jax.vmap(one, 1, 1)(q, k, v).reshape(N, D)

    return lambda weights, x: jnp.sum(stage(weights, x, NO_BATCH, block) ** 2), (
        f32(L, D, 3 * D),
        f32(N, D),
    )


def mapped_one_by_one():
    def loss(weights, x):
        made = jax.lax.map(lambda each: stage(*each, NO_BATCH), (weights, x))
        return jnp.sum(made**2)

    return loss, ARGS


def little_recomputed():
    def loss(weights, x):
        return stages(NO_BATCH)(weights[:2], x) + jnp.sum(jnp.tanh(weights[2] @ weights[2]))

    return loss, ((*WEIGHTS, f32(1024, 1024)), ARGS[1])


def without_gradient():
    """Recompute nothing, as nothing is differentiated through the checkpoint."""

    def loss(weights, x):
        hidden = jax.vmap(lambda ws, x: stage(ws, x, NO_BATCH))(weights[:2], x)
        return jnp.sum(jax.lax.stop_gradient(hidden) @ weights[2])

    return loss, ((*WEIGHTS, f32(D, D)), ARGS[1])


SILENT = {
    "dots": lambda: (stages(POLICIES.dots_saveable), ARGS),
    "names": lambda: (stages(NAMES), ARGS),
    "no policy": lambda: (stages(None), ARGS),
    "names beside": lambda: (stages(POLICIES.save_from_both_policies(NO_BATCH, NAMES)), ARGS),
    "nothing": lambda: (stages(POLICIES.nothing_saveable), ARGS),
    "everything": lambda: (stages(POLICIES.everything_saveable), ARGS),
    "shared parameters": lambda: shared(NO_BATCH),
    "experts": lambda: experts(False),
    "experts, mapped": lambda: experts(True),
    "scores of examples": attended,
    "scores of heads": heads,
    "a map": mapped_one_by_one,
    "little": little_recomputed,
    "no gradient": without_gradient,
}


@pytest.mark.parametrize("name", SILENT)
def test_it_is_silent(name):
    fun, args = SILENT[name]()
    assert not found(fun, *args)
