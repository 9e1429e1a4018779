"""The one thing to do next, on reports made by hand."""

import dataclasses

from jaxresid.inspector.findings.proposals import Proposal
from jaxresid.inspector.next_step import next_step
from jaxresid.results import (
    Compiled,
    CompiledChange,
    Finding,
    Location,
    PlaceInfo,
    Source,
    Verdict,
)
from tests.render.test_render import CHECKPOINTED, EARNING, MIB, REPORT, USELESS

WORDS = ("model.py:loss", "--on", "gpu:h100")
CHANGED = {"low_nbytes": 90 * MIB, "high_nbytes": 110 * MIB}


def of(memory, report=REPORT, *, is_dead=False, why=None, proposals=(), **peak):
    """The step for a device of so many MiB."""
    place = PlaceInfo("gpu:h100", "gpu", "as asked", "gpu", memory * MIB)
    estimate = dataclasses.replace(report.peak, **(CHANGED | peak))
    report = dataclasses.replace(report, place=place, peak=estimate)
    return next_step(
        report, WORDS, proposals=proposals, is_dead=is_dead, why_uncompiled=lambda: why
    )


def proposal(change, peak, fraction, **more):
    """A finding that takes 100 MiB to so many."""
    figures = {"peak_before_nbytes": 100 * MIB, "peak_nbytes": peak * MIB}
    measured = {**figures, "recompute_fraction": fraction}
    source = Source(Location("model.py", 9, 4, "loss", "x @ y"))
    compiled = more.pop("compiled", None)
    finding = Finding("logits-at-peak", "", source, measured=measured, compiled=compiled)
    return Proposal(finding, None, change=change, **more)


def test_what_does_not_fit_is_planned():
    step = of(80)
    assert step.command == ("jaxresid", "plan", *WORDS)
    assert step.message == "make it fit; attention keeps 32.00 MiB of 35.00 MiB"
    assert step.nbytes == 35 * MIB + MIB // 4


def test_what_is_too_close_is_compiled_where_there_is_a_compiler():
    assert of(100).command == ("jaxresid", "compile", *WORDS)
    step = of(100, why="compiling needs libtpu: pip install it")
    assert (step.action, step.command) == ("install", ())
    assert step.message.endswith("XLA can: compiling needs libtpu: pip install it")


def test_a_finding_that_makes_it_fit_is_what_a_plan_is_weighed_against():
    cheap, dear = proposal("tokens in parts", 70, 0.01), proposal("all in parts", 20, 0.3)
    step = of(80, proposals=[dear, cheap])
    assert step.command == ("jaxresid", "plan", *WORDS)
    assert step.message == (
        "make it fit; tokens in parts (logits-at-peak, model.py:9) takes it from 100.00 MiB to"
        " 70.00 MiB, for 1.0% more FLOPs; weigh checkpoints against it"
    )
    # What is less too much comes before what is cheaper.
    assert "to 20.00 MiB" in of(50, proposals=[cheap, dear]).message
    half = [proposal("tokens in parts", 75, -0.1)]
    assert "for no more FLOPs" in of(50, proposals=half).message
    assert "attention keeps" in of(49, proposals=half).message


def test_a_finding_that_takes_flops_off_or_that_xla_refutes_makes_nothing_fit():
    refuted = CompiledChange("gpu:h100", "refuted", 100 * MIB, 99 * MIB)
    for each in (
        proposal("no policy", 20, 0.0, gain="flops"),
        proposal("tokens in parts", 20, 0.0, compiled=refuted),
    ):
        assert "attention keeps" in of(80, proposals=[each]).message
    confirmed = CompiledChange("gpu:h100", "confirmed", 120 * MIB, 60 * MIB)
    step = of(80, proposals=[proposal("tokens in parts", 90, 0.0, compiled=confirmed)])
    assert "takes it from 120.00 MiB to 60.00 MiB" in step.message


def test_a_checkpoint_that_is_not_worth_it_is_checked():
    report = dataclasses.replace(CHECKPOINTED, checkpoints=(EARNING, USELESS, USELESS))
    step = of(1000, report)
    assert step.command == ("jaxresid", "check", *WORDS)
    assert step.message == (
        "the checkpoint of loss at model.py:60 saves nothing for 33.3% more FLOPs, as 1 more"
    )
    judged = dataclasses.replace(USELESS, verdict=Verdict.NOT_JUDGED)
    assert of(1000, dataclasses.replace(REPORT, checkpoints=(judged,))).action == "compare"


def test_a_checkpoint_without_which_it_fits_as_well_may_go():
    report = dataclasses.replace(CHECKPOINTED, checkpoints=(EARNING,))
    step = of(940, report)  # the upper end of the interval is 10 % above
    assert step.command == ("jaxresid", "compare", *WORDS)
    assert step.message == (
        "the checkpoint of layer adds 4.8% FLOPs; without it the peak of 850.00 MiB fits as well"
    )
    assert of(930, report).message == "attention keeps 32.00 MiB of 35.00 MiB"
    # With it next to nothing is kept, which is what it is for.
    assert of(940, dataclasses.replace(report, residuals=())).message == step.message
    assert of(930, dataclasses.replace(report, residuals=())).action == "none"


def test_where_residuals_are_little_it_says_what_is_much():
    breakdown = (("optimizer-state", 900 * MIB), ("residual", 100 * MIB))
    high = {"low_nbytes": 900 * MIB, "high_nbytes": 1100 * MIB}
    step = of(500, nbytes=1000 * MIB, breakdown=breakdown, **high)
    assert step.message == "make it fit; 900.00 MiB of 1000.00 MiB are optimizer state"
    step = of(5000, nbytes=1000 * MIB, breakdown=(("argument", 900 * MIB),), **high)
    assert (step.action, step.command) == ("none", ())
    assert step.message.endswith("as 900.00 MiB of 1000.00 MiB are arguments")


def test_xla_knows_better():
    compiled = Compiled("gpu:h100", peak_nbytes=90 * MIB, capacity_nbytes=80 * MIB, fits=False)
    step = of(1000, dataclasses.replace(REPORT, compiled=(compiled,)))
    # The estimate says that it fits, and so would a plan by it.
    assert step.command == ("jaxresid", "plan", *WORDS, "--compile")
    failed = Compiled("gpu:h100", error="it broke")
    assert of(1000, dataclasses.replace(REPORT, compiled=(failed,))).action == "compare"


def test_nothing_to_gain():
    step = of(1000, dataclasses.replace(REPORT, residuals=()))
    assert (step.action, step.command) == ("none", ())
    assert of(1000, is_dead=True).action == "return"


def test_a_lower_bound_above_the_memory_does_not_fit():
    assert of(80, uncounted=("pallas_call",), low_nbytes=None, high_nbytes=None).action == "plan"
    assert of(200, uncounted=("pallas_call",), low_nbytes=None, high_nbytes=None).action != "plan"
