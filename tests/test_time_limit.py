"""`--until`, with which the gate ends in time."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ONE = "tests/inspector/trace/test_sharding.py::test_a_shard_is_the_largest_piece"


@pytest.mark.integration
@pytest.mark.parametrize(("left_s", "said"), [(-1, "1 skipped"), (600, "1 passed")])
def test_what_has_not_begun_is_skipped_and_said(left_s, said):
    until = str(time.time() + left_s)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", ONE, "--until", until]
    found = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    # Of one test, one is more than 5 %.
    assert (found.returncode == 0) == (left_s > 0)
    assert said in found.stdout
    assert ("1 tests were skipped as the gate's time is over" in found.stdout) == (left_s < 0)
