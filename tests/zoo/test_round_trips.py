"""`pytest -m zoo`: what `plan --emit` prints, pasted into the model's file, keeps what it said.

A row is an adapter with its `--emit`; all run in the environment `newest` that `install.py` makes.
"""

import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import running
from test_adapters import command, report

TUTORIALS = running.ROOT / "fixtures" / "tutorials"
ENVIRONMENT = "newest"  # the tutorials need Flax 0.12
STEP = (
    *("--arg", "f32[4096,256]", "--arg", "f32[4096,256]"),
    *("--loss", "squared-error", "--optimizer", "adam", "--on", "tpu:v5e"),
)
_PROMISE = re.compile(r"traced with these settings: kept ([\d.]+) MiB, peak about ([\d.]+) MiB")
_PLACE = re.compile(r"(?P<text>.*?)  # .*:(?P<line>\d+), new")


def pasted(source, emitted):
    """The source with each emitted line at the number that its comment says."""
    lines = source.splitlines()
    for each in map(_PLACE.match, emitted.splitlines()):
        at = int(each["line"]) - 1
        following = lines[at : at + 1]
        indent = re.match(r" *", following[0])[0] if each["text"].startswith("@") else ""
        lines.insert(at, indent + each["text"])
    return "\n".join(lines) + "\n"


@pytest.mark.zoo
@pytest.mark.parametrize("framework", ["linen", "nnx", "equinox"])
def test_the_promise_holds(framework, tmp_path):
    file = tmp_path / f"{framework}_step.py"
    shutil.copy(TUTORIALS / file.name, file)
    target = f"{framework}:{file}:Net"
    done = command(ENVIRONMENT, "plan", target, *STEP, "--budget", "130MiB", "--emit", framework)
    kept, peak = map(float, _PROMISE.search(done.stderr).groups())
    file.write_text(pasted(file.read_text(), done.stdout))
    found = report(ENVIRONMENT, target, *STEP)
    assert found["totals"]["computed_nbytes"] / 2**20 == pytest.approx(kept, abs=0.006)
    assert found["peak"]["nbytes"] / 2**20 == pytest.approx(peak, abs=0.006)
