"""Plans of models that a framework runs through by itself, from no line of the user's."""

import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("flax")
pytest.importorskip("equinox")
sys.path.insert(0, str(Path(__file__).parent.parent / "zoo"))

from test_round_trips import pasted

FILE = "sequence_models.py"
WORDS = ("--arg", "f32[2048,64]", "--on", "tpu:v5e")
_TRACED = re.compile(r"traced with these settings: kept ([\d.]+) MiB, peak about ([\d.]+) MiB")


@pytest.mark.integration
@pytest.mark.parametrize("framework", ["linen", pytest.param("equinox", marks=pytest.mark.slow)])
def test_what_is_emitted_keeps_its_promise(call, report, tmp_path, framework):
    words = (*WORDS, "--budget", "8MiB", "--emit", framework)
    _, out, err = call("plan", f"{framework}:{FILE}:{framework}_blocks", *words)
    kept, peak = map(float, _TRACED.search(err).groups())
    again = tmp_path / f"{framework}_again.py"
    again.write_text(pasted(Path(FILE).read_text(), out))
    found = report(f"{framework}:{again}:{framework}_blocks", *WORDS)
    assert found["totals"]["computed_nbytes"] / 2**20 == pytest.approx(kept, abs=0.006)
    assert found["peak"]["nbytes"] / 2**20 == pytest.approx(peak, abs=0.006)


@pytest.mark.integration
@pytest.mark.parametrize("framework", ["nnx", "equinox"])
def test_the_blocks_are_one_place(call, framework):
    target = f"{framework}:{FILE}:{framework}_blocks"
    _, out, _ = call("plan", target, *WORDS, "--budget", "8MiB", "-f", "json")
    (site,) = json.loads(out)["sites"]
    assert site["function"].endswith("Block.__call__")
    assert site["calls"] == 4


def test_what_no_line_can_say_is_not_planned(call):
    words = ("plan", f"nnx:{FILE}:nnx_layers", *WORDS, "--budget", "2.2MiB")
    _, out, _ = call(*words, "-f", "json")
    plan = json.loads(out)
    assert plan["sites"] == []
    assert plan["unwritten"] == []
