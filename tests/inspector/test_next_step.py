"""The one thing to do next, on reports made by hand."""

import dataclasses

from jaxresid.inspector.next_step import next_step
from jaxresid.model import Compiled, PlaceInfo, Verdict
from tests.render.test_render import CHECKPOINTED, EARNING, MIB, REPORT, USELESS

WORDS = ("model.py:loss", "--on", "gpu:h100")
CHANGED = {"low_nbytes": 90 * MIB, "high_nbytes": 110 * MIB}


def of(memory, report=REPORT, *, is_dead=False, why=None, **peak):
    """The step for a device of so many MiB."""
    place = PlaceInfo("gpu:h100", "gpu", "as asked", "gpu", memory * MIB)
    estimate = dataclasses.replace(report.peak, **(CHANGED | peak))
    report = dataclasses.replace(report, place=place, peak=estimate)
    return next_step(report, WORDS, is_dead=is_dead, why_uncompiled=lambda: why)


def test_what_does_not_fit_is_planned():
    step = of(80)
    assert step.command == ("jaxresid", "plan", *WORDS)
    assert step.message == "make it fit; attention keeps 32.00 MiB of 35.00 MiB"
    assert step.nbytes == 35 * MIB + MIB // 4


def test_what_is_too_close_is_compiled_where_there_is_a_compiler():
    assert of(100).command == ("jaxresid", "compile", *WORDS)
    step = of(100, why="compiling needs libtpu: pip install it")
    assert (step.action, step.command) == ("install", ())
    assert step.message.endswith("XLA can, but compiling needs libtpu: pip install it")


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
