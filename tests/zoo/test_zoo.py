"""`pytest -m zoo`: programs around released libraries, in environments of their own.

`python tests/zoo/install.py` makes those; a target whose environment is not there is skipped.
Verdicts that XLA:CPU does not bear out are printed and counted, and fail nothing.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import running
from targets import TARGETS

CASES = [(target, name) for target in TARGETS for name in target.environments]


@pytest.mark.zoo
@pytest.mark.parametrize(
    ("target", "environment"), CASES, ids=[f"{t.name}-{name}" for t, name in CASES]
)
def test_target(target, environment):
    if not running.python_of(environment).exists():
        pytest.skip(f"no environment {environment}: python tests/zoo/install.py {environment}")
    found = running.outcome(target, environment)
    for row in found.verdicts:
        if row[-1] is False:
            print(f"disagrees with XLA:CPU: {row}")
    assert not found.wrong, "\n".join(found.wrong)


def test_there_are_enough_targets_and_libraries():
    assert len(TARGETS) >= 20
    assert len({target.library for target in TARGETS}) >= 12
    programs = {path.stem for path in (running.HERE / "programs").glob("*.py")}
    assert {target.program for target in TARGETS} == programs


def test_a_claim_is_held_against_what_xla_takes():
    found = running.Outcome("t", "l", "e")
    row = {"function": "f", "location": {"file": "m.py", "line": 3}, "verdict": "earns-its-keep"}
    rows = [{**row, "temp_without": n} for n in (200, 90, None)]
    running._judge_verdicts({"temp": 100, "rows": rows}, found)
    assert [row[-1] for row in found.verdicts] == [True, False, None]


def test_what_a_report_keeps_is_held_against_the_leaves():
    report = {"residuals": [{"dtype": "float32", "shape": [2], "nbytes": 8}]}
    for leaves, wrong in (([["float32", [2], 8, 1]], 0), ([["float32", [2], 8, 2]], 1)):
        found = running.Outcome("t", "l", "e")
        running._judge_kept(report, {"leaves": leaves}, None, found)
        assert len(found.wrong) == wrong
