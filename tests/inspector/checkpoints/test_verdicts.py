"""The verdicts' thresholds, on figures made by hand."""

from dataclasses import replace

import jax
import pytest

from jaxresid.inspector.checkpoints.policies import Answers
from jaxresid.inspector.checkpoints.sites import Body, Call, CheckpointSite
from jaxresid.inspector.checkpoints.verdicts import ProgramFigures, VerdictFacts, judge
from jaxresid.model import Cost, Location, Source, Verdict

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


def test_undone_needs_no_loop_and_something_dropped():
    free = replace(SITE, prevent_cse=False)
    assert verdict(0, 1000, 10_000, 10_000, site=free) == Verdict.UNDONE
    assert verdict(0, 1000, 5000, 10_000, site=free) == Verdict.EARNS
    assert verdict(1000, 1000, 10_000, 10_000, site=free) == Verdict.SAVES_NOTHING
    looped = replace(free, calls=(replace(CALL, loops=(object(),)),))
    assert verdict(0, 1000, 10_000, 10_000, site=looped) == Verdict.SAVES_NOTHING


def test_undone_by_a_compiler_that_removes_barriers():
    removed = {"remover": "XLA:CPU of jaxlib 0.10.2"}
    assert verdict(0, 1000, 10_000, 10_000) == Verdict.SAVES_NOTHING
    assert verdict(0, 1000, 10_000, 10_000, **removed) == Verdict.UNDONE
    assert "XLA:CPU of jaxlib 0.10.2 removes" in judge(facts(0, 9, 10, 10, **removed)).reason
    # In a loop something is left of it, unless all of it was found to be merged.
    looped = replace(SITE, calls=(replace(CALL, loops=(object(),)),))
    assert verdict(0, 1000, 10_000, 10_000, site=looped, **removed) == Verdict.SAVES_NOTHING
    merged = {**removed, "is_merged": True}
    assert verdict(0, 1000, 10_000, 10_000, site=looped, **merged) == Verdict.UNDONE
    # What lowers the peak all the same is not undone.
    assert verdict(0, 1000, 5000, 10_000, **merged) == Verdict.EARNS


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
