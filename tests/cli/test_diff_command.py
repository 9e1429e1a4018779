"""`jaxresid diff`: its sides, what it refuses, and that it leaves nothing behind."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jaxresid
from jaxresid.base.errors import JaxresidError
from jaxresid.cli.options.sides import AskedSides, SavedReport, label_of, sides_of
from jaxresid.revisions.reports import ReportRequest
from tests.repositories import CHANGED, MODEL
from tests.small import f32
from tests.stages import without_stages

ROOT = Path(__file__).parents[2]
TARGETS = """
[tool.jaxresid.targets.small]
target = "model.py:loss"
[tool.jaxresid.targets.large]
target = "model.py:loss"
args = ["f32[64,64]"]
"""


def sides(*given, **options):
    return sides_of(AskedSides(*(*given, None, None)[:2], **options))


@pytest.fixture
def saved(repository):
    import jax.numpy as jnp

    report = jaxresid.inspect(lambda x: jnp.sum(jnp.sin(x) ** 2))(f32(4, 4))
    report.save("before.json")
    return "before.json"


def test_a_revision_is_compared_with_the_working_tree(repository):
    ((one, other),) = sides("main", targets=("model.py:loss",))
    assert (one.revision, one.label, one.target) == ("main", "main", "model.py:loss")
    assert (other.revision, other.label) == (None, "working tree")


def test_targets_are_those_of_the_configuration(repository):
    (repository / "pyproject.toml").write_text(TARGETS)
    assert [one.target for one, _ in sides("main")] == ["small", "large"]
    assert [one.target for one, _ in sides("main", targets=("large",))] == ["large"]
    ((one, other),) = sides("small", "large")
    assert (one.target, other.target, one.revision) == ("small", "large", None)


def test_ranges(repository, git):
    (repository / "pyproject.toml").write_text(TARGETS)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "Two")
    (one, other), _ = sides("HEAD~1..HEAD")
    assert (one.revision, other.revision) == ("HEAD~1", "HEAD")
    (one, other), _ = sides("HEAD~1...main")
    assert one.revision == git(repository, "rev-parse", "--short=12", "HEAD~1").strip()
    assert other.revision == "main"


def test_a_flag_or_an_interpreter_is_for_the_second_side(repository):
    ((one, other),) = sides(targets=("model.py:loss",), flags=("jax_remat3=1",))
    assert (one.flags, other.flags) == ((), ("jax_remat3=1",))
    assert (one.label, other.label) == ("working tree", "working tree with jax_remat3=1")
    ((one, other),) = sides("main", targets=("model.py:loss",), python="other/python")
    assert (one.revision, other.revision) == ("main", "main")
    assert (one.python, other.python) == (None, "other/python")
    ((one, other),) = sides("model.py:loss", flags=("jax_remat3=1",))
    assert one.target == other.target == "model.py:loss"


def test_saved_reports(saved):
    ((one, other),) = sides(saved, saved)
    assert isinstance(one, SavedReport)
    assert label_of(one) == label_of(other) == saved
    ((_, other),) = sides(saved, "model.py:loss")
    assert isinstance(other, ReportRequest)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "nothing to compare with: write a revision"),
        (("nope",), "'nope' is no revision of .*, no saved report and no target: write"),
        (("nope.json",), "cannot read nope.json: No such file"),
        (("other.json",), "other.json is not a result of jaxresid"),
        (("model.py",), "model.py is not JSON"),
        (("main",), "no target: write --target module:function"),
        (("main..nope", "--target", "model.py:loss"), "'nope' is no revision"),
        (("nope...main",), "no revision 'nope'"),
        (("main", "before.json", "--flag", "jax_x=1"), "--flag and --python need something to"),
        (("before.json", "before.json", "--on", "tpu:v5e"), "--on needs something to trace"),
        (("before.json", "before.json", "--target", "a:b"), "--target needs something to trace"),
        (("a:b", "--flag", "jax_x=1", "--target", "c:d"), "--target is given, and so is a target"),
        (("before.json",), "no target: write --target"),
        (("main", "--target", "m.py:f", "--python", "none"), "--python none: no such interpreter"),
        (("main", "--target", "m.py:f", "--flag", "x"), "--flag x is not jax_NAME=VALUE"),
    ],
)
def test_refused(given, message, saved, call):
    Path("other.json").write_text("{}")
    code, out, err = call("diff", "-q", *given)
    assert (code, out) == (2, "")
    (line,) = without_stages(err).splitlines()
    assert re.search(message, line), line


@pytest.mark.integration
def test_what_changed_since_a_revision(repository, call, left_over):
    code, out, err = call("diff", "main", "--target", "model.py:loss", "--on", "tpu:v5e")
    assert code == 0, err
    assert out.startswith("The peak stays at ")
    assert "keeps 256 B more" in out
    assert "at model.py:7 in loss" in " ".join(out.split())
    assert "on tpu:v5e" in out
    assert left_over(repository) == 0
    code, out, _ = call("diff", "main", "--target", "model.py:loss", "--exit-code", "-f", "json")
    assert code == 0
    (document,) = json.loads(out)
    assert (document["kind"], document["before"]["label"]) == ("diff", "main")


def test_the_peak_decides_the_exit_code(saved, call):
    before = jaxresid.load(saved, jaxresid.Report)
    peak = before.peak
    assert peak is not None
    for share, code in ((1.0, 0), (1.009, 0), (1.05, 1), (0.5, 0)):
        after = dataclasses.replace(
            before, peak=dataclasses.replace(peak, nbytes=int(peak.nbytes * 1000 * share))
        )
        earlier = dataclasses.replace(
            before, peak=dataclasses.replace(peak, nbytes=peak.nbytes * 1000)
        )
        after.save("after.json")
        earlier.save(saved)
        assert call("diff", saved, "after.json", "--exit-code")[0] == code
    dataclasses.replace(before, peak=None).save("after.json")
    code, _, err = call("diff", saved, "after.json", "--exit-code")
    assert code == 2
    assert "--exit-code: the peaks of saved.<locals>.<lambda> cannot be compared" in err


@pytest.mark.integration
def test_the_same_exits_with_0(repository, call):
    (repository / "model.py").write_text("# Moved down.\n\n\n" + MODEL)
    code, out, _ = call("diff", "main", "--target", "model.py:loss", "--exit-code")
    assert code == 0
    assert out.startswith("No difference")
    code, out, _ = call("diff", "main", "--target", "model.py:loss", "-f", "markdown")
    assert out.startswith("### `model.py:loss`: no difference")


@pytest.mark.integration
def test_a_target_that_is_new_does_not_hide_the_others(repository, call):
    (repository / "model.py").write_text(CHANGED + "\n\ndef added(x):\n    return x.sum()\n")
    table = '[tool.jaxresid.targets.new]\ntarget = "model.py:added"\nargs = ["f32[4]"]\n'
    (repository / "pyproject.toml").write_text(TARGETS + table)
    code, out, err = call("diff", "main")
    assert code == 2
    assert out.count("keeps ") == 2
    assert "jaxresid: error: main: model.py has no attribute 'added'" in err


@pytest.mark.integration
def test_an_interpreter(repository, call):
    code, out, err = call("diff", "--target", "model.py:loss", "--python", sys.executable)
    assert code == 0, err
    assert f"working tree → working tree with {sys.executable}" in " ".join(out.split())


@pytest.mark.integration
def test_options_of_the_target_reach_both_sides(repository, call):
    options = ("--arg", "f32[2,3]", "--argnums", "0", "--mode", "loss", "--margin", "1KiB")
    options = (*options, "--trips", "3", "--target", "model.py:loss", "-f", "json")
    code, out, err = call("diff", "main", *options)
    assert code == 0, err
    (document,) = json.loads(out)
    (value,) = (v for line in document["lines"] for v in line["values"] if v["change"] == "added")
    assert value["after"]["shape"] == [2, 3]


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(
    number,
    repository,
    left_over,
    interruptible,
    tmp_path,
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    slow = "import pathlib, os, time\npathlib.Path({!r}).write_text(str(os.getpid()))\n".format(
        str(tmp_path / "began")
    )
    (repository / "model.py").write_text(slow + "time.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxresid", "diff", "-q", "main", "--target", "model.py:loss"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "began").exists() or not (tmp_path / "began").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert left_over(repository) == 1
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (out, err.strip()) == (b"", b"")
    assert left_over(repository) == 0
    assert list(temporary.iterdir()) == []
    child = int((tmp_path / "began").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_the_first_error_is_that_of_all(repository, monkeypatch):
    from jaxresid.cli.options import sides as module

    monkeypatch.setattr(module, "outcomes_of", lambda *_: (JaxresidError("a: no"),) * 2)
    pair = ReportRequest("a", "m:f"), ReportRequest("b", "m:f")
    with pytest.raises(JaxresidError, match=r"^a: no$"):
        module.traced([pair])
