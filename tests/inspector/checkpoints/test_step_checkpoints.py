"""Checkpoints of training steps: what the step's own jaxpr tells must be what differentiating the
loss again without them tells."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxresid
from fixtures.inspect import stack8
from jaxresid.results import Verdict
from tests.inspector.checkpoints.test_checkpoints import WS, X, block, body, chain, cp
from tests.small import f32


def step_of(loss):
    def step(params, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), value

    return step


def around_scan(ws, x):
    return jax.checkpoint(lambda x: lax.scan(body, x, ws)[0])(x).sum()


def scanned(ws, x):
    return lax.scan(jax.checkpoint(body), x, ws)[0].sum()


def scanned_dots(ws, x):
    return lax.scan(jax.checkpoint(body, policy=cp.dots_saveable), x, ws)[0].sum()


def groups(ws, x):
    def group(x, ws):
        return lax.scan(body, x, ws)[0], None

    return lax.scan(jax.checkpoint(group), x, ws)[0].sum()


def groups_of_checkpointed(ws, x):
    def group(x, ws):
        return lax.scan(jax.checkpoint(body), x, ws)[0], None

    return lax.scan(group, x, ws)[0].sum()


def last_stage(ws, x):
    h = chain(block(jnp.sin), lambda x: x)(ws[:-1], x)
    return (jax.checkpoint(block(jnp.sin))(h, ws[-1]) ** 2).sum()


def jitted(ws, x):
    return jax.jit(chain(jax.checkpoint(block(jnp.sin))))(ws, x)


STACKED = f32(6, 64, 256)
LOSSES = {
    "layers": (chain(jax.checkpoint(block(jnp.sin))), WS),
    "layers, dots": (chain(jax.checkpoint(block(jnp.sin), policy=cp.dots_saveable)), WS),
    "whole": (jax.checkpoint(chain(block(jnp.sin))), WS),
    "whole, dots": (jax.checkpoint(chain(block(jnp.sin)), policy=cp.dots_saveable), WS),
    "last stage": (last_stage, WS),
    "jitted": (jitted, WS),
    "scan": (scanned, STACKED),
    "scan, dots": (scanned_dots, STACKED),
    "around a scan": (around_scan, STACKED),
    "around the inner scan": (groups, f32(3, 2, 64, 256)),
    "in the inner scan": (groups_of_checkpointed, f32(3, 2, 64, 256)),
    "stack8 scan": (
        stack8.build("scan", "dots_no_batch"),
        stack8.inputs("scan", layers=3, batch=1, sequence=32, width=64)[0],
    ),
    "stack8 loop": (
        stack8.build("loop", "nothing"),
        stack8.inputs("loop", layers=3, batch=1, sequence=32, width=64)[0],
    ),
}


def input_of(name):
    return f32(1, 32, 64) if name.startswith("stack8") else X


@pytest.mark.integration
@pytest.mark.parametrize("name", LOSSES)
def test_a_step_tells_what_its_loss_tells(name):
    loss, params = LOSSES[name]
    x = input_of(name)
    (of_loss,) = jaxresid.inspect(loss, argnums=0)(params, x).checkpoints
    report = jaxresid.inspect(step_of(loss))(params, x)
    assert report.target.mode == "program"
    (of_step,) = report.checkpoints
    assert (of_step.trips, of_step.policy) == (of_loss.trips, of_loss.policy)
    assert of_step.location.line == of_loss.location.line or of_loss.location.code.startswith("def")
    if "dots" not in name:
        assert of_step.shape == of_loss.shape
    if name != "stack8 loop":  # whose parameters, counted twice in a step, make the fall look small
        assert of_step.verdict == of_loss.verdict
    dropped = of_loss.kept_without_nbytes - of_loss.kept_nbytes
    assert of_step.kept_without_nbytes - of_step.kept_nbytes == pytest.approx(dropped, rel=0.02)
    assert of_step.kept_nbytes == report.totals.computed_nbytes
    assert of_step.recompute_flops == pytest.approx(
        of_loss.recompute_flops, rel=0.02, abs=0.003 * report.cost.total.flops
    )


@pytest.mark.integration
@pytest.mark.parametrize("name", LOSSES)
def test_the_peaks_of_a_step_that_only_differentiates_are_the_losses(name):
    loss, params = LOSSES[name]
    x = input_of(name)
    (of_loss,) = jaxresid.inspect(loss)(params, x).checkpoints
    gradients = jax.value_and_grad(loss, argnums=(0, 1))
    (of_step,) = jaxresid.inspect(gradients)(params, x).checkpoints
    assert of_step.peak_nbytes == pytest.approx(of_loss.peak_nbytes, rel=0.01)
    assert of_step.peak_without_nbytes == pytest.approx(of_loss.peak_without_nbytes, rel=0.04)


def test_accumulation_in_a_scan():
    loss = chain(jax.checkpoint(block(jnp.sin)))

    def step(params, xs):
        def one(total, x):
            value, gradients = jax.value_and_grad(loss)(params, x)
            return jax.tree.map(jnp.add, total, gradients), value

        zeros = jax.tree.map(jnp.zeros_like, params)
        total, values = lax.scan(one, zeros, xs)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, total), values

    report = jaxresid.inspect(step)(WS, f32(4, 512, 64))
    (site,) = report.checkpoints
    (of_loss,) = jaxresid.inspect(loss, argnums=0)(WS, X).checkpoints
    assert (report.target.mode, site.trips) == ("program", 24)
    assert site.verdict == Verdict.EARNS
    dropped = of_loss.kept_without_nbytes - of_loss.kept_nbytes
    assert site.kept_without_nbytes - site.kept_nbytes == pytest.approx(dropped, rel=0.02)
    assert site.recompute_flops == pytest.approx(4 * of_loss.recompute_flops, rel=0.02)


@pytest.mark.integration
def test_an_inner_checkpoint_of_a_step_moves_into_the_outer_ones_recomputation():
    layer = jax.checkpoint(block(jnp.sin))

    def segment(x, ws):
        for w in ws:
            x = layer(x, w)
        return x

    def loss(ws, x):
        for i in range(0, 6, 3):
            x = jax.checkpoint(segment)(x, ws[i : i + 3])
        return x.sum()

    found = {c.function: c for c in jaxresid.inspect(step_of(loss))(WS, X).checkpoints}
    inner = found["layer"]
    assert inner.kept_without_nbytes == inner.kept_nbytes
    assert inner.peak_without_nbytes > inner.peak_nbytes


def test_loops_of_other_lengths_stay_apart():
    def loss(ws, x):
        x, _ = lax.scan(body, x, ws[:4])
        x, _ = lax.scan(jax.checkpoint(body), x, ws)
        return x.sum()

    (of_loss,) = jaxresid.inspect(loss, argnums=0)(STACKED, X).checkpoints
    (of_step,) = jaxresid.inspect(step_of(loss))(STACKED, X).checkpoints
    dropped = of_loss.kept_without_nbytes - of_loss.kept_nbytes
    assert of_step.kept_without_nbytes - of_step.kept_nbytes == pytest.approx(dropped, rel=0.02)


def test_a_name_saved_in_vain_is_found_in_a_step():
    policy = cp.save_only_these_names("hidden")
    loss = chain(jax.checkpoint(block(jax.nn.gelu, "hidden"), policy=policy))
    (site,) = jaxresid.inspect(step_of(loss))(WS, X).checkpoints
    assert "named-nonlinearity-output" in [f.name for f in site.findings]
    assert site.kept_nbytes == 6 * 512 * 256 * 4 + 5 * 512 * 64 * 4


def test_nothing_recomputed_nothing_judged():
    report = jaxresid.inspect(step_of(chain(block(jnp.sin))))(WS, X)
    assert report.checkpoints == ()
    assert report.cost.recompute.flops == 0
    assert report.cost.update.flops > 0
