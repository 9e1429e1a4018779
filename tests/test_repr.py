"""What a public value shows of itself: short, whatever it holds, and useful for a result."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxresid
from jaxresid.base.text.short_repr import Shown
from jaxresid.results import Aval, JaxInfo, LiveValue, Location, Source, Split
from tests.render.made_by_hand import COMPARISON, GIB, PLAN
from tests.render.test_render import CHECKPOINTED, REPORT, SPLIT
from tests.serialization.test_documents import values

MIB = 1024**2
PEAK = dataclasses.replace(REPORT.peak, low_nbytes=90 * MIB, high_nbytes=110 * MIB)
PUBLIC = [
    kind
    for kind in (getattr(jaxresid, name) for name in jaxresid.__all__)
    if inspect.isclass(kind) and dataclasses.is_dataclass(kind)
]
# Fields of any type at all, and those that hold arrays.
MADE_BY_FIELDS = [kind for kind in PUBLIC if kind not in (jaxresid.Inputs, jaxresid.Config)]
LONG = "abcdefghij " * 1000


@pytest.mark.parametrize("kind", [*PUBLIC, Split], ids=lambda kind: kind.__name__)
def test_every_public_value_is_shown_shortly(kind):
    assert issubclass(kind, Shown)
    assert "__create_fn__" not in kind.__repr__.__qualname__  # what a dataclass makes has no limit


@pytest.mark.parametrize("kind", MADE_BY_FIELDS, ids=lambda kind: kind.__name__)
@settings(max_examples=5)
@given(data=st.data())
def test_the_repr_of_any_value_is_short(kind, data):
    value = data.draw(values(kind))
    longer = {
        each.name: _longer(held)
        for each in dataclasses.fields(value)
        if (held := getattr(value, each.name)) is not None
    }
    for each in (value, dataclasses.replace(value, **longer)):
        text = repr(each)
        assert len(text) < 600
        assert "\n" not in text
        assert kind.__name__ in text


def test_the_shape_of_a_value_is_shown_as_it_shows_itself():
    """It has a shape and a dtype, as arrays have, but its dtype may be any text."""
    live = LiveValue("residual", 8, Aval("\n", (2,), 4))
    assert f"aval={live.aval!r}" in repr(live)
    assert "\n" not in repr(live)


def _longer(held):
    if isinstance(held, tuple) and held:
        return held * 500
    return LONG if type(held) is str else held


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            dataclasses.replace(CHECKPOINTED, peak=PEAK),
            "<Report of model:loss on tpu:v5p: peak 100.00 MiB (90.00 MiB to 110.00 MiB),"
            " 35.00 MiB kept in 4 residuals, 2 checkpoints>",
        ),
        (
            dataclasses.replace(REPORT, peak=None, residuals=()),
            "<Report of model:loss on tpu:v5p: no peak known, 0 B kept in 0 residuals,"
            " 0 checkpoints>",
        ),
        (
            COMPARISON,
            "<Comparison of gpt.py:loss on tpu:v5p: 8 rows at scan-bodies, peaks 1.75 GiB to"
            " 14.12 GiB, knee dots_with_no_batch_dims_saveable>",
        ),
        (
            PLAN,
            "<Plan of gpt.py:loss on tpu:v5p: fits 8.00 GiB, peak 7.50 GiB (6.80 GiB to 7.90 GiB),"
            " 13.8% recomputed, 3 places>",
        ),
        (
            dataclasses.replace(PLAN, answer="too close", confirmed=True, low_nbytes=None),
            "<Plan of gpt.py:loss on tpu:v5p: too close to 8.00 GiB, peak 7.50 GiB by XLA,"
            " 13.8% recomputed, 3 places>",
        ),
        (
            jaxresid.CompiledReport(
                PLAN.target,
                PLAN.jax,
                (PLAN.place,),
                (
                    jaxresid.Compiled("tpu:v5p", peak_nbytes=GIB, fits=True),
                    jaxresid.Compiled("tpu:v5p", error="no"),
                ),
            ),
            "<CompiledReport of gpt.py:loss on tpu:v5p: peak 1.00 GiB fits, error>",
        ),
        (
            jaxresid.Sweep(
                *(PLAN.target, PLAN.jax, "whole", (), ("none",), (8,)),
                (PLAN.place,) * 5,
                (
                    jaxresid.SweepRow("f", "none", 8, "tpu:v5p", "whole", error="no"),
                    jaxresid.SweepRow(
                        *("f", "none", 8, "tpu:v5p", "whole"),
                        compiled=jaxresid.Compiled("tpu:v5p", fits=True),
                    ),
                ),
            ),
            "<Sweep of gpt.py:loss on tpu:v5p, tpu:v5p, tpu:v5p and 2 more: 2 programs, 1 batch"
            " size, 1 fit, 1 could not be compiled>",
        ),
        (SPLIT, "<Split of m:f: 1 and 2 equations forward and backward, 1 residual>"),
        (JaxInfo("0.12", {}), "JaxInfo(version='0.12', flags={})"),
        (
            Source(Location("m.py", 1, None, "f")),
            "<Source m.py:1 in f>",
        ),
        (
            jaxresid.Target("f", tuple("abcdefg")),
            "Target(name='f', differentiated=('a', 'b', 'c', 'd', … 3 more))",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_it_says(value, text):
    assert repr(value) == text


def test_of_several_pieces_each_is_shown():
    assert repr(jaxresid.Mark.CARRY) in repr((jaxresid.Mark.CARRY,))
    value = jaxresid.Residual(
        jaxresid.Aval("f", (1,), 4), jaxresid.Constant(), marks=(jaxresid.Mark.CARRY,)
    )
    assert "marks=('carry',)" in repr(value)


def test_arrays_are_not_read():
    class Locked:
        shape, dtype = (3, 4), "float32"

        def __repr__(self):
            raise AssertionError("its elements are read")

    inputs = jaxresid.Inputs(
        (Locked(), jnp.ones(2), np.ones((5, 5))), {"a": jax.ShapeDtypeStruct((1,), "int8")}
    )
    assert repr(inputs) == (
        "Inputs(args=(float32[3,4], float32[2], float64[5,5]), kwargs={'a': int8[1]})"
    )


def test_a_name_acts_on_no_terminal():
    target = dataclasses.replace(REPORT.target, name="\x1b]0;x\n" + "y" * 999)
    text = repr(dataclasses.replace(REPORT, target=target))
    assert "\x1b" not in text and "\n" not in text
    assert len(text) < 300
