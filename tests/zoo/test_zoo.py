"""`pytest -m zoo`: programs around released libraries, in environments of their own.

`python tests/zoo/install.py` makes those; a target whose environment is not there is skipped.
Verdicts that XLA:CPU does not bear out are printed and counted, and fail nothing.

JAXRESID_ZOO_COMMANDS=split,plan runs these commands alone, and what is held against JAX and XLA is
asked only with `report`. JAXRESID_ZOO_LIMIT_S is the time that a program has. What JAX and XLA say
of one is kept in `oracles/` beside the environments until the program, the pins or the probe
change.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import running
from targets import TARGETS
from telling import told

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
    row = {"function": "f", "location": {"file": "m.py", "line": 3}}
    rows = [{**row, "temp_without": n} for n in (200, 90, None)]
    said = [{**row, "verdict": "earns-its-keep"}] * 4
    running._judge_verdicts({"temp": 100, "rows": rows}, said, found)
    assert [row[-1] for row in found.verdicts] == [True, False, None]


def test_what_a_report_keeps_is_held_against_the_leaves():
    rows = [{"dtype": "float32", "shape": [2], "nbytes": 8}]
    for mode, count, inside, wrong in (
        ("loss", 1, 1, 0),
        ("loss", 2, 1, 1),
        ("program", 2, 1, 0),
        ("program", 1, 0, 1),
        ("program", 2, 2, 1),
        ("program", 0, 0, 1),
    ):
        report = {"target": {"mode": mode}, "residuals": rows}
        found = running.Outcome("t", "l", "e")
        real = {"leaves": [["float32", [2], 8, count, inside]], "constants": []}
        running._judge_kept(report, real, None, found)
        assert len(found.wrong) == wrong


def test_a_step_need_not_hand_on_a_constant():
    report = {"target": {"mode": "program"}, "residuals": []}
    real = {"leaves": [["float32", [2], 8, 1, 1]], "constants": [["float32", [2], 8, 1]]}
    for mode, wrong in (("program", 0), ("loss", 1)):
        found = running.Outcome("t", "l", "e")
        running._judge_kept({**report, "target": {"mode": mode}}, real, None, found)
        assert len(found.wrong) == wrong


def test_the_finding_that_is_told_is_what_takes_most_off_the_peak():
    def finding(severity, **measured):
        place = {"code": "JXR801", "name": "n", "where": "m.py:3", "severity": severity}
        return {**place, "message": f"says {severity}: why", "measured": {"on": "cpu", **measured}}

    less = finding("warning", peak_nbytes=3072, peak_without_nbytes=2048)
    most = finding("info", peak_before_nbytes=8192, peak_nbytes=6144)
    assert told([]) == "nothing"
    assert told([less, finding("error")]) == (
        "JXR801 says warning (m.py:3): 1.0 KiB of the estimated peak of 3.0 KiB on cpu, and 1 more"
    )
    assert told([less, most]).startswith("JXR801 says info (m.py:3): 2.0 KiB of")
    assert told([finding("info"), finding("warning")]).startswith("JXR801 says warning (m.py:3)")
