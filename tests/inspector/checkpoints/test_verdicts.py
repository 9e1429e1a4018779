"""The verdicts' thresholds, on figures made by hand."""

from dataclasses import replace

import jax
import pytest

from jaxresid.inspector.checkpoints.policies import Answers
from jaxresid.inspector.checkpoints.sites import Body, Call, CheckpointSite
from jaxresid.inspector.checkpoints.verdicts import (
    ProgramFigures,
    VerdictFacts,
    judge,
    judge_by_xla,
)
from jaxresid.results import Cost, Location, Source, Verdict

cp = jax.checkpoint_policies
AT = Location("model.py", 12, 4, "loss", "x = layer(x)")
CALL = Call(eqn=object(), jaxpr=None, trips=1, around=(), loops=(), makers={})
SITE = CheckpointSite(Body("layer"), Source(AT), None, True, (CALL,))


def facts(kept, kept_without, peak, peak_without, *, flops=0, saves=False, names=(), **changes):
    given = {"shape": None, "around": None, "peak_location": AT, **changes}
    site = given.pop("site", SITE)
    return VerdictFacts(
        site=site,
        answers=Answers(saves, False, frozenset(names), frozenset()),
        figures=ProgramFigures(kept, peak, Cost(matmul_flops=1000 + flops)),
        without=ProgramFigures(kept_without, peak_without, Cost(matmul_flops=1000)),
        **given,
    )


def verdict(*figures, **changes):
    return judge(facts(*figures, **changes)).verdict


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ((0, 1000, 10_000 - 251, 10_000), Verdict.EARNS),
        ((0, 1000, 10_000 - 249, 10_000), Verdict.SAVES_NOTHING),
        # A tenth of the peak is more than the estimate misses, however much is dropped for it.
        ((0, 100_000, 9000, 10_000), Verdict.EARNS),
        ((0, 100_000, 9001, 10_000), Verdict.SAVES_NOTHING),
        ((0, 1000, 10_200, 10_000), Verdict.SAVES_NOTHING),
        ((0, 1000, 10_201, 10_000), Verdict.COSTS_MEMORY),
        ((1000, 0, 10_201, 10_000), Verdict.COSTS_MEMORY),
        # What drops nothing moves the peak by the estimate's error alone.
        ((1000, 1000, 10_900, 10_000), Verdict.SAVES_NOTHING),
        ((1000, 1000, 11_001, 10_000), Verdict.COSTS_MEMORY),
        ((1000, 1000, 9000, 10_000), Verdict.SAVES_NOTHING),
    ],
)
def test_thresholds(figures, expected):
    assert verdict(*figures) == expected


@pytest.mark.parametrize("shape", ["whole", "last-stage", "around-loop"])
def test_what_recomputes_at_once_saves_nothing_within_the_estimate(shape):
    assert verdict(0, 1000, 9500, 10_000, shape=shape) == Verdict.SAVES_NOTHING
    assert verdict(0, 1000, 10_900, 10_000, shape=shape) == Verdict.SAVES_NOTHING
    assert verdict(0, 1000, 9000, 10_000, shape=shape) == Verdict.EARNS
    assert verdict(0, 1000, 11_001, 10_000, shape=shape) == Verdict.COSTS_MEMORY
    # With a policy that saves something it does not recompute everything.
    dots = replace(SITE, policy=cp.dots_saveable)
    saves = {"site": dots, "saves": True, "shape": shape}
    assert verdict(0, 1000, 9500, 10_000, **saves) == Verdict.EARNS


def by_xla(kept, kept_without, peak, peak_without, **changes):
    estimated = facts(kept, kept_without, 10_000, 10_000, **changes)
    return judge_by_xla(estimated, peak, peak_without, lambda facts: ())


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ((0, 1000, 10_000 - 251, 10_000), Verdict.EARNS),
        ((0, 1000, 10_000 - 249, 10_000), Verdict.SAVES_NOTHING),
        ((0, 1000, 10_201, 10_000), Verdict.COSTS_MEMORY),
        # These peaks have no error: what they say of a checkpoint that drops nothing is so.
        ((1000, 1000, 10_201, 10_000), Verdict.COSTS_MEMORY),
        ((1000, 1000, 9000, 10_000), Verdict.EARNS),
        ((1000, 1000, 9001, 10_000), Verdict.SAVES_NOTHING),
    ],
)
def test_thresholds_of_xlas_peaks(figures, expected):
    assert by_xla(*figures).verdict == expected


@pytest.mark.parametrize("shape", ["whole", "last-stage", "around-loop"])
def test_xlas_peaks_are_believed_wherever_the_checkpoint_is(shape):
    assert by_xla(0, 1000, 9500, 10_000, shape=shape).verdict == Verdict.EARNS
    assert by_xla(0, 1000, 10_900, 10_000, shape=shape).verdict == Verdict.COSTS_MEMORY


def test_what_xla_undoes_takes_no_more_memory():
    free = replace(SITE, prevent_cse=False)
    assert by_xla(0, 1000, 10_200, 10_000, site=free).verdict == Verdict.UNDONE
    assert by_xla(0, 1000, 10_201, 10_000, site=free).verdict == Verdict.COSTS_MEMORY
    assert verdict(0, 1000, 10_201, 10_000, site=free) == Verdict.UNDONE


def test_xlas_verdict_has_the_estimates_beside_it():
    estimated = facts(0, 1000, 9900, 10_000)
    asked = []
    found = judge_by_xla(estimated, 5000, 8000, lambda facts: asked.append(facts) or ("found",))
    assert (found.by, found.verdict, found.findings) == ("xla", Verdict.EARNS, ("found",))
    assert (found.peak_nbytes, found.peak_without_nbytes, found.ratio) == (5000, 8000, 3.0)
    beside = found.estimated
    assert (beside.peak_nbytes, beside.peak_without_nbytes, beside.ratio) == (9900, 10_000, 0.1)
    own = judge(estimated)
    assert (beside.verdict, beside.reason) == (own.verdict, own.reason)
    assert "model.py:12" in own.reason  # the line of the estimate's peak, which XLA's has not
    assert "model.py:12" not in by_xla(0, 1000, 10_000, 10_000).reason
    # The findings follow from XLA's peaks too.
    assert [(f.figures.peak_nbytes, f.without.peak_nbytes) for f in asked] == [(5000, 8000)]
    assert (own.by, own.estimated) == ("estimate", None)


def test_undone_needs_no_loop_and_something_dropped():
    free = replace(SITE, prevent_cse=False)
    assert verdict(0, 1000, 10_000, 10_000, site=free) == Verdict.UNDONE
    assert verdict(0, 1000, 5000, 10_000, site=free) == Verdict.EARNS
    assert verdict(1000, 1000, 10_000, 10_000, site=free) == Verdict.SAVES_NOTHING
    looped = replace(free, calls=(replace(CALL, loops=(object(),)),))
    assert verdict(0, 1000, 10_000, 10_000, site=looped) == Verdict.SAVES_NOTHING


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, Verdict.NOT_JUDGED),
        ({"prevent_cse": False}, Verdict.NOT_JUDGED),
        ({"policy": cp.save_only_these_names("hiden")}, Verdict.MATCHED_NOTHING),
    ],
)
@pytest.mark.parametrize("peaks", [(None, None), (9000, None), (None, 9000)])
def test_without_peaks_only_the_policy_is_judged(changed, expected, peaks):
    found = judge(facts(100, 1100, *peaks, site=replace(SITE, **changed), names=["hidden"]))
    assert found.verdict == expected
    assert ("--compile" in found.reason) == (expected == Verdict.NOT_JUDGED)
    assert (found.peak_nbytes, found.peak_without_nbytes) == peaks
    assert (found.ratio, found.saved_per_gflop) == (None, None)
    assert (found.kept_nbytes, found.kept_without_nbytes) == (100, 1100)
    assert found.recompute_flops is not None


def test_overridden_needs_a_policy_that_saves():
    nested = replace(SITE, policy=cp.dots_saveable, calls=(replace(CALL, around=(object(),)),))
    assert verdict(0, 1000, 5000, 10_000, site=nested, saves=True) == Verdict.OVERRIDDEN
    plain = replace(nested, policy=None)
    assert verdict(0, 1000, 5000, 10_000, site=plain) == Verdict.EARNS
    found = judge(facts(0, 0, 1, 1, site=nested, saves=True, around=SITE))
    assert "model.py:12 (layer)" in found.reason
    assert found.shape == "nested"


def test_matched_nothing_is_of_policies_that_want_something():
    named = replace(SITE, policy=cp.save_only_these_names("hiden"))
    found = judge(facts(0, 1000, 5000, 10_000, site=named, names=["hidden", "out"]))
    assert found.verdict == Verdict.MATCHED_NOTHING
    assert "(closest: 'hidden')" in found.reason
    far = judge(facts(0, 1000, 5000, 10_000, site=named, names=["q", "k"]))
    assert "(known names: 'k', 'q')" in far.reason
    for policy in (None, cp.nothing_saveable, lambda *_, **__: False):
        assert verdict(0, 1000, 5000, 10_000, site=replace(SITE, policy=policy)) == Verdict.EARNS


def test_figures_of_a_checkpoint():
    found = judge(facts(100, 1100, 8000, 10_000, flops=2_000_000_000))
    assert found.ratio == 2.0
    assert found.recompute_flops == 2_000_000_000
    assert found.recompute_fraction == 2_000_000.0
    assert found.saved_per_gflop == 1000
    assert judge(facts(100, 100, 8000, 10_000)).ratio is None
    assert judge(facts(100, 1100, 8000, 10_000)).saved_per_gflop is None
