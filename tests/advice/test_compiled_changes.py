"""What findings propose is made and compiled: what is compiled, and what is said of it."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from peaks_by_xla import peak_by_xla

import jaxresid
from jaxresid.advice.check.check import checked
from jaxresid.advice.check.microbatches import microbatch_proposals
from jaxresid.advice.compile import changes
from jaxresid.advice.compile.ahead_of_time import CompileSettings
from jaxresid.advice.compile.report import confirmed
from jaxresid.advice.compile.rows import PolicyProgram
from jaxresid.base.errors import RetraceError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.findings.proposals import compiled_change, with_compiled
from jaxresid.inspector.report import inspection
from jaxresid.linter.run.files import LintRun
from jaxresid.render.report.overview.findings import finding_lines
from jaxresid.results import NOWHERE, Compiled, CompiledChange, Finding
from jaxresid.settings.config import Options, load
from jaxresid.xla.places import parse_place
from tests import donation_steps as steps

MIB = 2**20


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def logits(w, x, labels):
    scores = jax.nn.log_softmax(x @ w)
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], 1))


def training_step(w, x, labels):
    value, gradient = jax.value_and_grad(logits)(w, x, labels)
    return w - 0.1 * gradient, value


def last_of_stack(weights, x):
    def layer(x, w):
        x = x + jnp.tanh(x @ w)
        return x, x

    _, stack = jax.lax.scan(layer, x, weights)
    return jnp.sum(stack[-1] ** 2)


LOGITS = f32(32, 4096), f32(1024, 32), jax.ShapeDtypeStruct((1024,), jnp.int32)
STACKED = f32(16, 64, 64), f32(512, 64)
PROGRAMS = {
    "logits-at-peak": (training_step, LOGITS),
    "needless-loop-state": (last_of_stack, STACKED),
}


def inspected(fun, args, on="gpu:h100"):
    return inspection(Question(fun, args, on=parse_place(on)))


def values_of(shape, key):
    if shape.dtype == jnp.int32:
        return jax.random.randint(key, shape.shape, 0, 4096)
    return jax.random.normal(key, shape.shape, shape.dtype) * 0.1


@pytest.mark.integration
def test_what_is_compiled_computes_the_same():
    (proposal,) = inspected(training_step, LOGITS).proposals
    made = proposal.changed().trace.lowerable()
    given = [values_of(x, jax.random.key(i)) for i, x in enumerate(LOGITS)]
    found = jax.jit(lambda *each: list(made.run(each)))(*given)
    for a, b in zip(found, jax.jit(training_step)(*given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("name", "program"), PROGRAMS.items())
def test_what_is_compiled_is_what_the_figures_are_of(name, program):
    found = inspected(*program)
    (change,) = changes.changed_programs(found, [])[:1]
    assert change.proposal.finding.name == name
    peak = change.program.estimate_nbytes(found.subject.place)
    assert peak == pytest.approx(change.proposal.finding.measured["peak_nbytes"], rel=0.001)


class Asked:
    """What stands for the compiles of one answer.

    Args:
      before: the peak of the program as it is.
      after: that with the change of each finding, by its name; an error; or None where it was not
        asked.
    """

    limit_s, settings = 7, CompileSettings()

    def __init__(self, before, after):
        self.before, self.after = before, after

    def compiled(self, programs):
        return tuple(self.row(program.policy.removeprefix("without ")) for program in programs)

    def row(self, name):
        found = self.before if name == "as-written" else self.after[name]
        if found is None:
            return None
        known = {"error": found} if isinstance(found, str) else {"peak_nbytes": found}
        return Compiled("gpu:h100", name, **known)


def asked(before, **after):
    return Asked(before, {name.replace("_", "-"): nbytes for name, nbytes in after.items()})


def confirm(fun, args, before, **after):
    return confirmed(inspected(fun, args), asked(before, **after))


def only(found, name):
    (finding,) = (each for each in found.report.findings if each.name == name)
    return finding


def violation(found, name):
    linted = checked(found, LintRun(load(Path(), Options()), nearest=Options()))
    (one,) = (v for each in linted for v in each.violations if v.name == name)
    return one


def test_xla_confirms():
    before = only(inspected(training_step, LOGITS), "logits-at-peak")
    found = confirm(training_step, LOGITS, 100 * MIB, logits_at_peak=90 * MIB)
    after = only(found, "logits-at-peak")
    says = "XLA for gpu:h100 agrees: its peak falls from 100.00 MiB to 90.00 MiB"
    assert (after.message, after.help) == (f"{before.message}. {says}", before.help)
    assert after.compiled == CompiledChange("gpu:h100", "confirmed", 100 * MIB, 90 * MIB)
    assert after.measured == {
        **before.measured,
        "compiler_verdict": "confirmed",
        "compiler_peak_before_nbytes": 100 * MIB,
        "compiler_peak_nbytes": 90 * MIB,
    }


@pytest.mark.parametrize("left", [98, 100, 120])
def test_xla_refutes_what_takes_less_than_3_percent_off(left):
    before = only(inspected(last_of_stack, STACKED), "needless-loop-state")
    found = confirm(last_of_stack, STACKED, 100 * MIB, needless_loop_state=left * MIB)
    after = only(found, "needless-loop-state")
    assert after.message.startswith("refuted by XLA for gpu:h100, whose peak ")
    assert after.message.endswith(f" By the estimate: {before.message}")
    assert f"{left}.00 MiB. By" in after.message
    assert (after.help, after.compiled.verdict) == ("", "refuted")
    assert after.compiled.peak_nbytes == left * MIB
    shown = violation(found, "needless-loop-state")
    assert (shown.severity, shown.help) == ("info", "")
    assert shown.measured["compiler_verdict"] == "refuted"
    styles = {line.head: line.style for line in finding_lines(found.report)}
    assert styles["needless-loop-state"] == "dim"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("no libtpu", "no libtpu"),
        (None, "took longer than 7 s, which is all the time that compiling may take"),
    ],
)
def test_what_was_not_compiled_stays_an_estimate(answer, why):
    before = only(inspected(last_of_stack, STACKED), "needless-loop-state")
    after = only(
        confirm(last_of_stack, STACKED, 100 * MIB, needless_loop_state=answer),
        "needless-loop-state",
    )
    reason = f"the program with the change was not compiled: {why}"
    assert (after.message, after.help) == (before.message, before.help)
    assert after.compiled == CompiledChange("gpu:h100", "unconfirmed", 100 * MIB, None, reason)
    assert after.measured["unconfirmed"] == reason


def test_only_some_are_compiled(monkeypatch):
    monkeypatch.setattr(changes, "MOST_REWRITES", 0)
    after = only(confirm(last_of_stack, STACKED, 100 * MIB), "needless-loop-state")
    assert after.compiled.reason.startswith("only ")


def test_what_jax_cannot_differentiate_whole_is_unconfirmed():
    def fails():
        raise RetraceError("no")

    found = inspected(last_of_stack, STACKED)
    (proposal,) = found.proposals
    found = dataclasses.replace(found, proposals=(dataclasses.replace(proposal, changed=fails),))
    assert changes.changed_programs(found, []) == ()
    judged = changes.with_changes_judged(found, (), None, (), "")
    assert judged.proposals[0].finding.compiled.verdict == "unconfirmed"


def test_of_flops_compilers_say_nothing():
    said = compiled_change("gpu:h100", 90 * MIB, 100 * MIB, "", "flops")
    assert (said.verdict, said.reason) == ("unconfirmed", "compilers do not count FLOPs")
    found = with_compiled(Finding("defeated-policy", "It is", NOWHERE, "name it"), said)
    says = "XLA for gpu:h100: its peak rises from 90.00 MiB to 100.00 MiB"
    assert (found.message, found.help) == (f"It is. {says}", "name it")


@pytest.mark.integration
@pytest.mark.parametrize("after", [60, 100])
def test_a_missing_donation(after):
    args = steps.plain_inputs()
    found = confirm(steps.plain(), args, 100 * MIB, missing_donation=after * MIB)
    said = violation(found, "missing-donation")
    verdict = "confirmed" if after == 60 else "refuted"
    assert said.measured["compiler_verdict"] == verdict
    assert said.message.startswith("refuted by XLA") == (verdict == "refuted")
    assert ("XLA's peak falls by 40.00 MiB" in said.message) == (verdict == "confirmed")


@pytest.mark.gpu
@pytest.mark.integration
def test_xla_s_figures_are_those_of_the_program_written_so():
    """BudgetCheck against the loss written in as many parts, for a GPU that need not be here."""
    args = f32(128, 8192), f32(4096, 128), jax.ShapeDtypeStruct((4096,), jnp.int32)
    found = jaxresid.check(logits, on="gpu:h100", compile=True, compile_time=300)(*args)
    (measured,) = [v.measured for v in found if v.code == "JXR830"]

    def in_parts(w, x, labels):
        parts = x.reshape(measured["chunks"], -1, 128), labels.reshape(measured["chunks"], -1)
        one = jax.checkpoint(lambda part: logits(w, *part), prevent_cse=False)
        return jnp.mean(jax.lax.map(one, parts))

    assert measured["compiler_verdict"] == "confirmed"
    assert measured["compiler_peak_before_nbytes"] == peak_by_xla(logits, args, "gpu:h100")
    by_hand = peak_by_xla(in_parts, args, "gpu:h100")
    assert measured["compiler_peak_nbytes"] == pytest.approx(by_hand, rel=0.05)


# -- a batch in microbatches, which is found after the program was compiled -----------------------

BATCH = [f32(64, 64)] * 2, f32(4096, 64)
BUDGET = 3 * MIB


def trunk(ws, x):
    for w in ws:
        x = x + jnp.sin(x @ w)
    return jnp.mean(x**2)


def batch_step(ws, x):
    value, gradients = jax.value_and_grad(trunk)(ws, x)
    return [w - g for w, g in zip(ws, gradients, strict=True)], value


def batched(fun, peaks=None, limit=BUDGET):
    """Return JXR842, judged where there are peaks, and the inspection that it is of."""
    argnums = 0 if fun is trunk else None
    found = inspection(Question(fun, BATCH, on=parse_place("gpu:h100"), argnums=argnums))
    if peaks is not None:
        found = confirmed(found, peaks)
    run = LintRun(load(Path(), Options()), nearest=Options())
    linted = checked(found, run, limit_nbytes=limit, compiles=peaks)
    (one,) = (v for each in linted for v in each.violations if v.name == "whole-batch-at-once")
    return one, found


@pytest.mark.parametrize("fun", [trunk, pytest.param(batch_step, marks=pytest.mark.integration)])
def test_xla_confirms_microbatches(fun):
    before, _ = batched(fun)
    after, _ = batched(fun, asked(100 * MIB, whole_batch_at_once=2 * MIB))
    says = "XLA for gpu:h100 agrees: its peak falls from 100.00 MiB to 2.00 MiB"
    assert (after.message, after.help) == (f"{before.message}. {says}", before.help)
    assert after.measured["compiler_verdict"] == "confirmed"


@pytest.mark.parametrize(
    ("left", "says"),
    [
        (98, "peak falls from 100.00 MiB to 98.00 MiB. By"),
        (4, "peak falls from 100.00 MiB to 4.00 MiB, which is more than 3.00 MiB. By"),
    ],
)
def test_xla_refutes_microbatches_that_gain_nothing_or_do_not_fit(left, says):
    found, _ = batched(trunk, asked(100 * MIB, whole_batch_at_once=left * MIB))
    assert found.message.startswith(f"refuted by XLA for gpu:h100, whose {says}")
    assert (found.help, found.severity) == ("", "info")
    assert found.measured["compiler_verdict"] == "refuted"
    assert "unconfirmed" not in found.measured


def test_what_was_not_said_to_fit_need_not():
    found, _ = batched(trunk, asked(100 * MIB, whole_batch_at_once=4 * MIB), limit=1024)
    assert found.measured["fits"] == "does not fit"
    assert found.measured["compiler_verdict"] == "confirmed"


def test_microbatches_that_were_not_compiled_stay_an_estimate():
    before, _ = batched(trunk)
    after, _ = batched(trunk, asked(100 * MIB, whole_batch_at_once=None))
    assert (after.message, after.help) == (before.message, before.help)
    late = "took longer than 7 s, which is all the time that compiling may take"
    assert after.measured["unconfirmed"].endswith(late)


def test_microbatches_of_what_fits_by_xla_are_not_told():
    with pytest.raises(ValueError, match="not enough values"):
        batched(trunk, asked(2 * MIB))


@pytest.mark.parametrize("fun", [trunk, pytest.param(batch_step, marks=pytest.mark.integration)])
def test_the_microbatches_that_are_compiled_are_those_of_the_figures(fun):
    said, found = batched(fun)
    (proposal,) = microbatch_proposals(found, BUDGET)
    changed = proposal.changed()
    program = PolicyProgram("", changed.trace, changed.program)
    place = found.subject.place
    assert program.estimate_nbytes(place) == said.measured["peak_nbytes"]
    given = [values_of(x, jax.random.key(i)) for i, x in enumerate(jax.tree.leaves(BATCH))]
    made = jax.jit(lambda *each: list(changed.trace.lowerable().run(each)))(*given)
    plain = jax.value_and_grad(trunk) if fun is trunk else batch_step
    expected = jax.jit(plain)(given[:2], given[2])
    times = said.measured["microbatches"] if fun is trunk else 1  # a function's are added up
    for a, b in zip(made, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, times * b, rtol=1e-3, atol=1e-5)
