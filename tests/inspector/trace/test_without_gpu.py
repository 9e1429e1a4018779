"""Code that asks for a GPU while it is traced, where there is none."""

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid import jax_compat
from jaxresid.base.errors import TraceError

B, T, N, H = 2, 256, 4, 64
W = jax.ShapeDtypeStruct((N * H, N * H), jnp.bfloat16)
LAYERS = [{"q": W, "k": W, "v": W, "o": W}] * 2
X = jax.ShapeDtypeStruct((B, T, N * H), jnp.bfloat16)
ASSUMED = "traced as if on an NVIDIA H100 with cuDNN"

pytestmark = pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")


def attention(x, p, implementation="cudnn"):
    q, k, v = ((x @ p[name]).reshape(B, T, N, H) for name in "qkv")
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
    return x + mixed.reshape(x.shape) @ p["o"]


def plain(ps, x):
    for p in ps:
        x = attention(x, p)
    return (x.astype(jnp.float32) ** 2).mean()


def checkpointed(ps, x):
    for p in ps:
        x = jax.checkpoint(attention)(x, p)
    return (x.astype(jnp.float32) ** 2).mean()


def step(ps, x):
    value, grads = jax.value_and_grad(checkpointed)(ps, x)
    return jax.tree.map(lambda a, g: a - g, ps, grads), value


def insists(x):
    assert jax.default_backend() == "gpu", "needs a GPU"
    shared = jax.devices()[0].shared_memory_per_block_optin
    return (
        jnp.sin(x) * (shared > 2**17) * (jax.local_devices()[0].compute_capability >= "9")
    ).sum()


def branches(x):
    if jax.default_backend() == "gpu":
        raise AssertionError("this is no GPU")
    try:
        jax.devices("gpu")
    except RuntimeError:
        return jnp.sin(x).sum()
    return jnp.cos(x).sum() * jnp.sin(x).sum()


def fails(x):
    jax.devices()
    return (x @ x[:3]).sum()


def computed(report):
    return report.totals.computed_nbytes


def leaves_of_vjp(fun, *args):
    """What the real vjp function holds beside its arguments."""

    def run(*args):
        return jax.tree.leaves(jax.vjp(fun, *args)[1])

    with jax_compat.assuming_gpu():
        closed = jax.make_jaxpr(run)(*args)
    jaxpr = jax_compat.open_jaxpr(closed)
    given = set(jaxpr.invars)
    kept = [v for v in jaxpr.outvars if not jax_compat.is_literal(v) and v not in given]
    return sum(v.aval.size * v.aval.dtype.itemsize for v in kept)


@pytest.mark.parametrize("fun", [plain, checkpointed])
def test_cudnn_attention(fun):
    report = jaxresid.inspect(fun)(LAYERS, X)
    assert computed(report) == leaves_of_vjp(fun, LAYERS, X)
    assert any(warning.startswith(ASSUMED) for warning in report.warnings)
    assert "dot_product_attention_fwd_wrapper" in report.cost.total.uncosted
    assert "dot_product_attention_bwd_wrapper" in report.peak.uncounted
    with pytest.raises(RuntimeError, match="cuDNN"):  # as before
        jax.make_jaxpr(fun)(LAYERS, X)


@pytest.mark.integration
def test_its_checkpoint_is_judged():
    (site,) = jaxresid.inspect(checkpointed)(LAYERS, X).checkpoints
    assert site.kept_without_nbytes == computed(jaxresid.inspect(plain)(LAYERS, X))
    assert site.kept_nbytes < site.kept_without_nbytes


def test_in_a_step():
    report = jaxresid.inspect(step)(LAYERS, X)
    assert report.target.mode == "program"
    (site,) = report.checkpoints
    assert site.kept_nbytes < site.kept_without_nbytes
    assert any(warning.startswith(ASSUMED) for warning in report.warnings)


def test_compare_and_compile():
    comparison = jaxresid.compare(checkpointed)(LAYERS, X)
    kept = {row.policy: row.kept_nbytes for row in comparison.rows}
    assert kept["none"] == computed(jaxresid.inspect(plain)(LAYERS, X))
    assert any(warning.startswith(ASSUMED) for warning in comparison.warnings)
    report = jaxresid.compile(plain, on="cpu", cache=False)(LAYERS, X)
    (row,) = report.compiled
    assert "cuDNN's attention" in row.error
    assert "NVIDIA" in row.error


def test_code_that_insists_on_a_gpu():
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    report = jaxresid.inspect(insists)(x)
    assert computed(report) == 64 * 64 * 4
    assert any(warning.startswith(ASSUMED) for warning in report.warnings)
    assert jax.default_backend() != "gpu"


def test_code_that_gets_along_without_is_traced_as_it_is():
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    report = jaxresid.inspect(branches)(x)
    assert not report.warnings
    assert computed(report) == 64 * 64 * 4


def test_another_error_is_that_error():
    with pytest.raises(TraceError, match="fails to trace") as caught:
        jaxresid.inspect(fails)(jax.ShapeDtypeStruct((64, 64), jnp.float32))
    assert "H100" not in str(caught.value)
    assert caught.value.__cause__ is not None
