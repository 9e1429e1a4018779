"""A file that takes too long is named, and the others are linted, with or without it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxresid.base.violations import Linted
from jaxresid.linter.run.files import LintRun
from jaxresid.linter.run.workers import CandidateFile, lint_files
from jaxresid.linter.text import time_limit
from jaxresid.settings.config import Config
from tests.where import ROOT

A, B = Path("/a.py"), Path("/b.py")


def forever():
    while True:
        pass


@pytest.fixture(autouse=True)
def _limit(monkeypatch):
    monkeypatch.setattr(time_limit, "SECONDS", 0.05)


class Linter(LintRun):
    """A run whose work on the content of A is what a test wants."""

    def __init__(self, work):
        super().__init__(Config(Path("/")))
        self.work, self.done = work, []

    def content(self, raw, path, absolute):
        self.done.append(path)
        if absolute == A:
            self.work(self)
        return Linted(path, ())


def outcomes(work):
    lint = Linter(work)
    files = [CandidateFile(p.name, p, b"") for p in (A, B)]
    results = lint_files(files, 1, lint, None)
    return [(r.path, [v.code for v in r.violations]) for r in results], lint.done


@pytest.mark.parametrize(
    "work",
    [lambda _: forever(), lambda _: re.match(r"(a*)*b", "a" * 60)],
    ids=["python", "re"],
)
def test_a_file_that_takes_too_long_is_named(work):
    assert outcomes(work) == ([("a.py", ["over-limit"]), ("b.py", [])], ["a.py", "b.py"])


def test_what_is_left_out_is_empty_for_others(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("import jax\n")
    run = LintRun(Config(tmp_path))
    assert run.project(tmp_path).contents.content(file) == b"import jax\n"
    run.leave_out(file)
    assert run.project(tmp_path).contents.content(file) == b""


def test_one_that_takes_too_long_to_read_is_left_out_for_others():
    def work(lint):
        with time_limit.reading(B):
            if B not in lint.over_limit_files:
                forever()
            assert lint.overlay[B] == b""

    assert outcomes(work) == ([("a.py", []), ("b.py", ["over-limit"])], ["a.py", "a.py"])


def test_one_that_nobody_asked_for_is_named():
    def work(lint):
        with time_limit.reading(A.with_name("c.py")):
            if not lint.over_limit_files:
                forever()

    assert outcomes(work)[0] == [("a.py", []), ("b.py", []), ("/c.py", ["over-limit"])]


def test_what_others_take_to_read_is_not_of_the_file():
    def work(lint):
        for path in (B, A.with_name("c.py")) * 4:
            with time_limit.reading(path):
                assert sum(range(1_500_000)) > 0

    assert outcomes(work)[0] == [("a.py", []), ("b.py", [])]


def test_what_nothing_can_read_ends():
    def work(lint):
        with time_limit.reading(B):
            forever()

    assert outcomes(work)[0] == [("a.py", ["over-limit"]), ("b.py", ["over-limit"])]


# libcst, which is asked where `ast` refuses a text, takes twice as long for each of these brackets.
HANGS = f"import jax\nmatch x:\n case {'(' * 30}\njax.checkpoint(f)\n"
FINDING = "import jax\nfrom hangs import f\n\njax.checkpoint(f)\n"
PROGRAM = """
import sys
from jaxresid.linter.run import workers
from jaxresid.linter.text import time_limit
from jaxresid.__main__ import main
time_limit.SECONDS, workers._POOL_NBYTES = 1, 0
sys.exit(main())
"""


@pytest.mark.integration
@pytest.mark.parametrize("options", [["--jobs", "1"], ["--jobs", "2"], ["--fix"]])
def test_the_others_are_linted(tmp_path, options):
    (tmp_path / "hangs.py").write_text(HANGS)
    (tmp_path / "one.py").write_text(FINDING)
    (tmp_path / "two.py").write_text(FINDING)
    command = [sys.executable, "-c", PROGRAM, "lint", "-f", "concise"]
    ours = {"cwd": tmp_path, "capture_output": True, "text": True}
    ours["env"] = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *options], check=False, **ours)
    assert done.returncode == 2, done.stderr
    lines = done.stdout.splitlines()[:3]
    assert lines[0] == "hangs.py:1:1: over-limit: not linted, as that takes over 1 s of CPU time"
    assert [line.split()[:2] for line in lines[1:]] == [
        ["one.py:4:1:", "JXR105"],
        ["two.py:4:1:", "JXR105"],
    ]
    if "--fix" in options:
        for option in ("--fix-only", "--add-noqa"):
            done = subprocess.run([*command, option], check=False, **ours)
            assert done.returncode == 2
            assert "hangs.py: over-limit: not linted" in done.stderr
    again = subprocess.run([*command, "-"], check=False, **ours, input=HANGS)
    assert (again.returncode, "-:1:1: over-limit: " in again.stdout) == (2, True), again
