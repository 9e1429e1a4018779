"""Estimated times in words: the interval, `about the same`, `not checked`."""

import dataclasses
import json

import pytest

from jaxresid.render.report.times import time_remark, time_text
from jaxresid.render.tables.compare import entries, remarks, render_comparison
from jaxresid.render.tables.plan import figure_parts, render_plan
from jaxresid.results import TimeBasis, TimeInterval
from tests.render.made_by_hand import COMPARISON, PLAN, ROWS, printed
from tests.schemas import validate

CHIP = TimeBasis("gpu:h100", "chip", {"jaxlib": ("0.11.2",)}, 6, 138, 0.8, 1.2)
COMPILER = TimeBasis(
    "tpu:v5p", "compiler", {"jaxlib": ("1",), "libtpu": ("0.0.52",)}, 9, 20, 0.9, 1.1
)


def checked(row, basis=CHIP):
    around = basis.around(1 + row.time_fraction)
    return dataclasses.replace(row, low_time_fraction=around.low, high_time_fraction=around.high)


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.35, "×1.35 (1.13-1.62)"),
        (0.21, "×1.21 (1.01-1.45)"),
        (0.19, "about the same"),
        (0.0, "about the same"),
        (-0.16, "about the same"),
        (-0.18, "×0.82 (0.68-0.98)"),
    ],
)
def test_a_difference_within_the_interval_is_about_the_same(fraction, text):
    assert time_text(fraction, CHIP.around(1 + fraction), "×") == text
    assert time_text(fraction, None, "×") == f"×{1 + fraction:.2f}"


def test_the_same_program_takes_as_long():
    assert time_text(0.0, TimeInterval(0.0, 0.0), "x") == "x1.00"


def test_what_was_checked_is_said():
    assert time_remark("gpu:h100", CHIP, ["gpu:h100"]) == (
        "Range of time: four in five pairs of placements in 6 models, measured on gpu:h100 with"
        " jaxlib 0.11.2; a difference within it is about the same."
    )
    assert "nine in ten" in time_remark("tpu:v5p", COMPILER, [])
    assert "by XLA's cost analysis for tpu:v5p (libtpu 0.0.52)" in time_remark(
        "tpu:v5p", COMPILER, []
    )
    said = time_remark("gpu:h100", CHIP, ["gpu:h100"], is_all=False)
    assert said.endswith("; with transfers or communication it was not checked.")
    assert time_remark("tpu:v5e", None, ["gpu:h100"]) == (
        "The time was not checked for tpu:v5e; it was for gpu:h100."
    )
    assert time_remark("tpu:v5e", None, []) == "The time was not checked for tpu:v5e."


def test_a_comparison_says_what_is_about_the_same():
    rows = [checked(row) for row in ROWS if row.time_fraction is not None]
    compared = dataclasses.replace(COMPARISON, rows=tuple(rows), time_basis=CHIP)
    text = printed(render_comparison(compared))
    by_policy = {row.policy: row for row in rows}
    assert by_policy["dots_saveable"].time_fraction == pytest.approx(0.09)
    (dots,) = (line for line in text.splitlines() if " C *" in line)
    (nothing,) = (line for line in text.splitlines() if " F *" in line)
    assert "about the same" in dots and "×1.31 (1.09-1.57)" in nothing
    assert "not checked" not in text and "four in five" in text
    # One with transfers was not.
    moved = dataclasses.replace(by_policy["nothing_saveable"], low_time_fraction=None)
    mixed = tuple(moved if row.policy == moved.policy else row for row in rows)
    text = printed(render_comparison(dataclasses.replace(compared, rows=mixed)))
    assert "×1.31 not checked" in text and "communication" in text
    value = json.loads(compared.to_json())
    validate(value, "compare")
    assert value["time_basis"] == {
        "place": "gpu:h100",
        "by": "chip",
        "compilers": {"jaxlib": ["0.11.2"]},
        "models": 6,
        "pairs": 138,
        "coverage": 0.8,
        "factor": 1.2,
    }
    found = {row["policy"]: row for row in value["rows"]}
    assert found["nothing_saveable"]["low_time_fraction"] == pytest.approx(1.31 / 1.2 - 1)
    assert found["nothing_saveable"]["high_time_fraction"] == pytest.approx(1.31 * 1.2 - 1)


def test_a_comparison_says_what_was_not_checked():
    compared = dataclasses.replace(COMPARISON, times_checked_on=("gpu:h100",))
    assert "The time was not checked for tpu:v5p; it was for gpu:h100." in remarks(compared)
    untimed = tuple(dataclasses.replace(row, time_fraction=None) for row in ROWS)
    assert "not checked" not in " ".join(remarks(dataclasses.replace(compared, rows=untimed)))


def test_rows_with_other_intervals_are_other_entries():
    rows = (ROWS[0], checked(ROWS[0]))
    assert len(entries(dataclasses.replace(COMPARISON, rows=rows))) == 2


def test_a_plan_says_it_too():
    assert figure_parts(PLAN)[-1] == "time est. ×1.11 on tpu:v5p, not checked"
    plan = dataclasses.replace(checked(PLAN), time_basis=CHIP)
    assert figure_parts(plan)[-1] == "time est. about the same on tpu:v5p"
    assert "four in five" in printed(render_plan(plan))
    slower = checked(dataclasses.replace(PLAN, time_fraction=0.5))
    assert figure_parts(slower)[-1] == "time est. ×1.50 (1.25-1.80) on tpu:v5p"
    value = json.loads(dataclasses.replace(slower, time_basis=COMPILER).to_json())
    validate(value, "plan")
    assert value["low_time_fraction"] == pytest.approx(0.25)
    assert value["time_basis"]["by"] == "compiler"
    unknown = dataclasses.replace(PLAN, time_fraction=None)
    assert "not checked" not in printed(render_plan(unknown))
