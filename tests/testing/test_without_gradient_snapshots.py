"""What the fixture holds and writes of programs that take no gradient."""

from pathlib import Path

import pytest

from jaxresid.advice.check.budgets import budget_findings
from jaxresid.results import Limits
from jaxresid.testing.snapshots import snapshot
from tests.programs_without_gradient import report


def test_a_snapshot_has_what_goes_in_and_comes_out():
    text = snapshot(report("decode_donated"), Path())
    assert "What goes in and out" in text
    assert " 8.00 MiB  float32[4,8,1024,64] cache[0], returned updated, donated" in text
    assert "backward" not in text
    assert text != snapshot(report("decode"), Path())


@pytest.mark.parametrize(("factor", "fails"), [(4, False), (0.5, True)])
def test_limits_of_the_peak_hold(factor, fails):
    nbytes = report("evaluate").peak.nbytes
    found = budget_findings(report("evaluate"), Limits(peak_nbytes=int(factor * nbytes)))
    assert [each.fails for each in found] == [True] * fails
    for each in found:
        assert "programs_without_gradient.py" in each.finding.source.location.file
        assert each.finding.help == "make what the line computes smaller, or raise the budget"
