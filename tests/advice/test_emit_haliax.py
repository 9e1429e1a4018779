"""Plans as policies of Haliax: what is written, for which Haliax need not be installed."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxresid.advice.plan.emit.jax_policies import saved_and_offloaded
from jaxresid.advice.plan.emit.stacked import OnStacks
from jaxresid.advice.plan.source.writing import plan_edits
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.results import PlannedPart
from tests.advice.test_writing import part, site

STACKED = """\
import haliax.nn as hnn


def init(Layers, key):
    return hnn.Stacked.init(Layers, Block)(key)


def loss(net, x):
    return net.fold(x)
"""
FOLDED = """\
import haliax as hax


def loss(blocks, x):
    return hax.fold(run, Layers)(x, blocks)
"""
NAMES = "save_only_these_names('q', 'scan(Layers)__carry')"
MOVED = (
    "save_and_offload_only_these_names(names_which_can_be_saved=['q'],"
    " names_which_can_be_offloaded=['h', 'scan(Layers)__carry', 'scan(Layers)__input'],"
    " offload_src='device', offload_dst='pinned_host')"
)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def loop(text, call, *parts, kind="scan", trips=8):
    made = site(kind, text, call, "body", *(parts or (part(),)))
    return replace(made, library="haliax", trips=trips)


def emitted(text, *sites):
    """The lines that are new, what they leave unsaid, and what cannot be written."""
    Path("model.py").write_text(text)
    write = OnStacks()
    fake = SimpleNamespace(fun=None, frames=Frames(), trace=None)
    found = plan_edits(write.joined(sites), fake, None, write)
    new = found.edits[0].new.decode() if found.edits else text
    return (
        [line.strip() for line in new.splitlines() if line not in text.splitlines()],
        write.unsaid,
        found.problems,
    )


def stacked(*parts, **more):
    return loop(STACKED, "net.fold(x)", *parts, **more)


def of_stack(policy):
    given = f"gradient_checkpointing=hnn.ScanCheckpointPolicy({policy})"
    return f"return hnn.Stacked.init(Layers, Block, {given})(key)"


@pytest.mark.parametrize(
    ("policy", "written"),
    [
        (None, "simple=True"),
        (NAMES, 'save_carries=True, save_block_internals=["q"]'),
        ("save_only_these_names('q')", 'save_carries=False, save_block_internals=["q"]'),
        (
            MOVED,
            'save_carries="offload", save_inputs="offload", save_block_internals=["q"],'
            ' offload_block_internals=["h"]',
        ),
    ],
)
def test_the_policy_of_a_stack(policy, written):
    assert emitted(STACKED, stacked(part(policy))) == ([of_stack(written)], [], ())


def test_the_policy_of_a_fold():
    lines, *_ = emitted(FOLDED, loop(FOLDED, "hax.fold(run, Layers)(x", part()))
    call = "hax.fold(run, Layers, remat=nn.ScanCheckpointPolicy(simple=True))(x, blocks)"
    assert lines == ["from haliax import nn", f"return {call}"]


def test_a_policy_that_is_there_is_replaced():
    text = STACKED.replace("Block)", "Block, gradient_checkpointing=True)")
    lines, *_ = emitted(text, loop(text, "net.fold(x)", part()))
    assert lines == [of_stack("simple=True")]


def test_what_goes_by_primitive_is_recomputed_instead():
    lines, unsaid, _ = emitted(STACKED, stacked(part("dots_saveable")))
    assert lines == [of_stack("simple=True")]
    assert unsaid == [
        "a policy of haliax saves by name, not dots_saveable: all is recomputed instead"
    ]


def segments(*sizes, policy=None, trips=8):
    cut = PlannedPart(1, True, policy, (), sizes)
    return stacked(cut, kind="segments", trips=trips)


def test_segments_are_nested():
    lines, unsaid, problems = emitted(STACKED, segments(2), stacked(part(NAMES)))
    assert lines == [of_stack('save_carries=True, save_block_internals=["q"], nested=4')]
    assert (unsaid, problems) == ([], ())
    assert emitted(STACKED, segments(2))[0] == [of_stack("disable=True, nested=4")]


@pytest.mark.parametrize(
    ("cut", "unsaid"),
    [
        (
            segments(2, policy="dots_saveable"),
            "haliax saves nothing around the stretches, not dots_saveable",
        ),
        (
            segments(4, 2),
            "haliax cuts a loop once, into equal stretches, not 8 iterations into 4 of 2",
        ),
        (segments(3), "haliax cuts a loop once, into equal stretches, not 8 iterations into 3"),
    ],
)
def test_what_no_policy_of_haliax_says(cut, unsaid):
    assert emitted(STACKED, cut, stacked())[1] == [unsaid]


def test_of_two_stacks_neither_is_set():
    text = STACKED.replace("(key)", "(key), hnn.BlockSeq.init(Layers, Block)(key)")
    lines, _, problems = emitted(text, loop(text, "net.fold(x)", part()))
    assert lines == []
    assert problems[0].startswith("model.py:9: cannot tell which Stacked.init of the library makes")


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (None, ([], [])),
        ("nothing_saveable", ([], [])),
        (NAMES, (["q", "scan(Layers)__carry"], [])),
        ("dots_saveable", None),
        ("save_from_both_policies(dots_saveable, save_only_these_names('q'))", None),
    ],
)
def test_the_names_of_a_policy(policy, names):
    assert saved_and_offloaded(policy) == names
