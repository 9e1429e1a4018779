"""Profiles for pprof: read by its schema, their sums are the figures of the report."""

import dataclasses
import shutil
import subprocess

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from fixtures.inspect import gpt, train_step
from jaxresid.render.traces.pprof import profile_of_compiled, profile_of_report
from jaxresid.results import Compiled, CompiledBuffer, CompiledReport, Location, Source
from tests.render.pprof_reader import read
from tests.small import f32


def layer(x, w):
    return jnp.sin(jnp.tanh(x @ w))


def loss(ws, x):
    for w in ws:
        x = jax.checkpoint(layer)(x, w)
    return jnp.sum(x)


ARGUMENTS = [f32(128, 128)] * 3, f32(1024, 128)


def report_of(fun, *args, **options):
    return jaxresid.inspect(fun, lifetimes=True, **options)(*args)


def total(samples, figure, **labels):
    return sum(
        values[figure]
        for _, values, found in samples
        if all(found.get(name) == text for name, text in labels.items())
    )


@pytest.mark.parametrize("on", ["gpu:h100", "tpu:v5e"])
def test_the_sums_are_those_of_the_report(on):
    report = report_of(loss, *ARGUMENTS, on=on)
    types, samples, comments = read(profile_of_report(report))
    assert types == [("kept", "bytes"), ("peak", "bytes"), ("recompute", "FLOPs")]
    assert total(samples, "kept") == report.totals.computed_nbytes > 0
    assert total(samples, "peak") == report.peak.nbytes
    for kind, nbytes in report.peak.breakdown:
        assert total(samples, "peak", kind=kind) == nbytes
    flops = sum(each.recompute_flops or 0 for each in report.checkpoints)
    assert total(samples, "recompute") == flops > 0
    assert comments[1] == "peak: an estimate"


@pytest.mark.integration
def test_stacks_are_the_users_frames():
    report = report_of(gpt.loss, *gpt.loss_inputs())
    _, samples, _ = read(profile_of_report(report))
    by_stack = {}
    for residual in report.residuals:
        if residual.origin.kind == "computed":
            stack = tuple((f.function, f.file, f.line) for f in residual.origin.stack)
            by_stack[stack] = by_stack.get(stack, 0) + residual.nbytes
    found = {}
    for stack, values, _ in samples:
        if values["kept"]:
            found[stack] = found.get(stack, 0) + values["kept"]
    assert found == by_stack
    assert all(stack[0][0] == "loss" for stack in found)


def test_arguments_are_named():
    _, samples, _ = read(profile_of_report(report_of(loss, *ARGUMENTS)))
    names = {stack[-1][0] for stack, _, found in samples if found["kind"] == "argument"}
    assert names == {"ws[0]", "ws[1]", "ws[2]", "x"}


def test_a_checkpoint_has_its_recomputation():
    report = report_of(loss, *ARGUMENTS)
    _, samples, _ = read(profile_of_report(report))
    ((stack, _, labels),) = [each for each in samples if each[1]["recompute"]]
    assert [frame[0] for frame in stack] == ["loss", "layer"]
    assert labels["verdict"] == report.checkpoints[0].verdict


def test_it_is_the_same_in_every_run():
    report = report_of(loss, *ARGUMENTS)
    made = profile_of_report(report)
    assert made == profile_of_report(report)
    assert made[4:8] == bytes(4)  # gzip's time


def test_what_a_checkpoint_spares_is_negative():
    report = report_of(loss, *ARGUMENTS)
    (checkpoint,) = report.checkpoints
    sparing = dataclasses.replace(checkpoint, recompute_flops=-5)
    changed = dataclasses.replace(report, checkpoints=(sparing,))
    _, samples, _ = read(profile_of_report(changed))
    assert total(samples, "recompute") == -5


def test_text_of_code_does_nothing_on_a_terminal():
    report = report_of(loss, *ARGUMENTS)
    first, *rest = report.lifetimes
    values = tuple(
        dataclasses.replace(each, stack=(Location("\x1b[31mx.py", 1, 0, "f\u202e"),))
        for each in first.values
    )
    changed = dataclasses.replace(first, values=values)
    _, samples, _ = read(profile_of_report(dataclasses.replace(report, lifetimes=(changed, *rest))))
    names = [text for stack, _, _ in samples for frame in stack for text in frame[:2]]
    assert any("x.py" in name for name in names)
    assert not any("\x1b" in name or "\u202e" in name for name in names)


def compiled(*buffers, live_nbytes):
    row = Compiled("cpu", buffers=buffers, live_nbytes=live_nbytes, compiler="jaxlib 1")
    report = report_of(loss, *ARGUMENTS)
    return CompiledReport(report.target, report.jax, (report.place,), (row,))


def test_buffers_of_xla():
    place = Location("model.py", 3, 0, "block")
    result = compiled(
        CompiledBuffer("temporary", 100, source=Source(place), opcode="fusion"),
        CompiledBuffer("temporary", 50, source=Source(Location("model.py", 9, None, ""))),
        CompiledBuffer("argument", 20, residual="params['w']"),
        CompiledBuffer("temporary", 7, memory="host"),
        live_nbytes=200,
    )
    types, samples, comments = read(profile_of_compiled(result))
    assert types == [("peak", "bytes")]
    assert {stack: values["peak"] for stack, values, _ in samples} == {
        (("block", "model.py", 3),): 100,
        (("model.py", "model.py", 9),): 50,
        (("<argument>", "", 0), ("params['w']", "", 0)): 20,
        (("<buffers that are not listed>", "", 0),): 30,
    }
    assert comments[1] == "peak: XLA's"


def test_a_report_for_a_cpu_has_xlas_buffers():
    report = dataclasses.replace(report_of(loss, *ARGUMENTS), lifetimes=(), peak=None)
    buffer = CompiledBuffer("temporary", 100)
    row = Compiled("cpu", buffers=(buffer,), live_nbytes=100)
    for known, said in (((row,), "peak: XLA's"), ((), "nothing is known of the peak")):
        made = profile_of_report(dataclasses.replace(report, compiled=known))
        _, samples, comments = read(made)
        assert (total(samples, "peak"), comments[1]) == (100 if known else 0, said)


def test_results_give_it():
    report = report_of(loss, *ARGUMENTS)
    assert report.to_pprof() == profile_of_report(report)
    with pytest.raises(ValueError, match="inspect with lifetimes=True"):
        dataclasses.replace(report, lifetimes=()).to_pprof()
    result = compiled(CompiledBuffer("temporary", 100), live_nbytes=100)
    assert result.to_pprof() == profile_of_compiled(result)
    with pytest.raises(ValueError, match="cpu does not list its buffers"):
        compiled(live_nbytes=None).to_pprof()
    with pytest.raises(ValueError, match="a profile is of one place"):
        dataclasses.replace(result, compiled=result.compiled * 2).to_pprof()


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("pprof") is None, reason="pprof is not installed")
def test_pprof_itself(tmp_path):
    for name in ("train_step", "train_step_checkpointed"):
        fun, inputs = getattr(train_step, name), train_step.train_step_inputs()
        (tmp_path / name).write_bytes(profile_of_report(report_of(fun, *inputs)))
    base, other = tmp_path / "train_step", tmp_path / "train_step_checkpointed"

    def pprof(*words):
        return subprocess.run(
            ["pprof", *words], check=True, capture_output=True, text=True, cwd=tmp_path
        ).stdout

    assert "block" in pprof("-top", str(base))
    assert "FLOPs" in pprof("-top", "-sample_index=recompute", "-diff_base", str(base), str(other))
