"""`jaxresid lint` as a user meets it: exit codes, options, fixes, standard input."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jaxresid.cli.main import run as run_command
from jaxresid.linter.rules import KNOWN, all_rules
from jaxresid.linter.run.files import LintRun
from jaxresid.render.lint import FORMATS
from tests.where import ROOT

CLEAN = "import jax\n\n\ndef run(layer, w, x):\n    return jax.checkpoint(layer)(w, x)\n"
# JXR202, an error with a safe fix.
CALLED = CLEAN.replace("(layer)", "(layer, policy=jax.checkpoint_policies.nothing_saveable())")
NAMED = CALLED.replace("saveable()", "saveable")
# JXR101, a warning with an unsafe fix.
LOSS = """import jax
import jax.numpy as jnp


def loss(w, x):
    return jnp.tanh(x @ w).sum()


def step(w, x):
    return jax.value_and_grad(jax.checkpoint(loss))(w, x)
"""
# JXR109, an info that is off by default.
LOOP = """import jax
import jax.numpy as jnp


def step(c, w):
    return jnp.sin(jnp.tanh(c @ w)), None


def loss(ws, x):
    out, _ = jax.lax.scan(step, x, ws)
    return out.sum()


gradient = jax.grad(loss)
"""
SYNTAX = "import jax\njax.checkpoint(\n"
# JXR101 in the first if the second differentiates it.
MODEL = """import jax
import jax.numpy as jnp


@jax.checkpoint
def loss(w, x):
    return jnp.tanh(x @ w).sum()
"""
TRAIN = "import jax\n\nimport model\n\n\ndef step(w, x):\n    return jax.grad(model.loss)(w, x)\n"


class Lab:
    """A directory to lint in, and the command."""

    def __init__(self, path, capture, monkeypatch):
        self.path = path
        self._capture = capture
        self._patch = monkeypatch

    def write(self, **files):
        """Files by name, `__` for a slash and without `.py`."""
        for name, content in files.items():
            self.put(f"{name.replace('__', '/')}.py", content)

    def put(self, name, content):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # At once and in place of the old file, for whoever watches.
        new = self.path / ".new"
        new.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.replace(new, path)
        return path

    def config(self, *lines, more=""):
        self.put("pyproject.toml", "\n".join(["[tool.jaxresid]", *lines, more, ""]))

    def raw(self, *argv, stdin=None):
        """Exit code, stdout and stderr, as bytes."""
        if stdin is not None:
            raw = stdin if isinstance(stdin, bytes) else stdin.encode()
            self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        self._capture.readouterr()
        code = run_command(["lint", *map(str, argv)])
        out, err = self._capture.readouterr()
        assert b"Traceback" not in err
        return code, out, err

    def __call__(self, *argv, stdin=None):
        code, out, err = self.raw(*argv, stdin=stdin)
        return code, out.decode(), err.decode()

    def found(self, *argv, stdin=None):
        """(file, code) of each finding."""
        code, out, err = self(*argv, "-f", "json", stdin=stdin)
        items = json.loads(out)
        failed = any(item["severity"] != "info" for item in items)
        assert (code, err) == (int(failed), "")
        return [(os.path.relpath(i["filename"], self.path), i["code"]) for i in items]


@pytest.fixture
def lab(tmp_path, monkeypatch, capsysbinary):
    for name in ("NO_COLOR", "FORCE_COLOR", "JAXRESID_OUTPUT_FORMAT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    replace = os.replace

    def replace_here(source, target):
        assert Path(os.path.abspath(target)).is_relative_to(tmp_path), target
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_here)
    return Lab(tmp_path, capsysbinary, monkeypatch)


def spawn(*argv, cwd, **more):
    env = {**os.environ, "PYTHONPATH": str(ROOT), **more.pop("env", {})}
    return subprocess.Popen([sys.executable, "-m", "jaxresid", *argv], cwd=cwd, env=env, **more)


# -- exit codes


@pytest.mark.parametrize(
    ("source", "argv", "expected"),
    [
        (CLEAN, [], 0),
        (LOOP, [], 0),
        (LOOP, ["--extend-select", "JXR109"], 0),
        (CALLED, [], 1),
        (LOSS, [], 1),
        (CALLED, ["--exit-zero"], 0),
        (CALLED, ["--fix"], 0),
        (CALLED, ["--fix", "--exit-non-zero-on-fix"], 1),
        (CLEAN, ["--fix", "--exit-non-zero-on-fix"], 0),
        (CALLED + LOSS, ["--fix"], 1),
        (CALLED + LOSS, ["--fix", "--exit-zero"], 0),
        (CALLED + LOSS, ["--fix-only"], 0),
        (CALLED + LOSS, ["--fix-only", "--exit-non-zero-on-fix"], 1),
        (LOSS, ["--fix-only", "--exit-non-zero-on-fix"], 0),
        (CALLED, ["--diff"], 1),
        (CALLED, ["--diff", "--exit-zero"], 0),
        (LOSS, ["--diff"], 0),
        (LOSS, ["--diff", "--unsafe-fixes"], 1),
        (CALLED, ["--statistics"], 1),
        (CALLED, ["--add-noqa"], 0),
        (CALLED, ["--show-files"], 0),
        (SYNTAX, [], 1),
        (SYNTAX, ["--fix"], 1),
        (SYNTAX, ["--exit-zero"], 0),
        (b"import jax\nx = jax.checkpoint(f)  # \xff\n", [], 1),
        (b"import jax\nx\0 = jax.checkpoint(f)\n", [], 1),
        (b"# coding: nonsense\nimport jax\nx = jax.checkpoint(f)\n", [], 1),
        (CALLED, ["missing.py"], 2),
        (CALLED, [""], 2),
        (CALLED, ["--no-such-option"], 2),
        (CALLED, ["-f", "yaml"], 2),
        (CALLED, ["-j", "0"], 2),
        (CALLED, ["--color", "blue"], 2),
        (CALLED, ["--target-jax", "new"], 2),
        (CALLED, ["--per-file-ignores", "JXR101"], 2),
        (CALLED, ["--exclude", "[a"], 2),
        (CALLED, ["--config", "missing.toml"], 2),
        (CALLED, ["-o", "missing/out.txt"], 2),
    ],
)
def test_exit_code(lab, source, argv, expected):
    lab.put("model.py", source)
    code, out, err = lab(*argv)
    assert code == expected
    assert err.startswith("jaxresid: error: ") or "Error: " in err or code != 2
    assert (out == "") == (code == 2) or argv[0] in {"--fix-only", "--diff", "--add-noqa"}


@pytest.mark.parametrize(
    "option", ["--select", "--ignore", "--extend-select", "--fixable", "--unfixable"]
)
@pytest.mark.parametrize("value", ["JXR999", "JXR101,F401", "", ","])
def test_unknown_code_is_refused(lab, option, value):
    lab.write(model=CLEAN)
    for argv in ([], ["-"], ["--add-noqa"], ["--fix"]):
        code, out, err = lab(option, value, *argv, stdin=CLEAN)
        assert (code, out) == (2, "")
        assert option in err
        assert (value.split(",")[-1] or "no rule") in err


@pytest.mark.parametrize(
    "line",
    [
        'select = ["JXR999"]',
        'unfixable = ["checkpointed-los"]',
        'per-file-ignores = { "*.py" = ["JXR999"] }',
        'selct = ["ALL"]',
        "fix = 1",
        'target-jax = "new"',
        "select = [",
    ],
)
def test_broken_configuration_is_refused(lab, line):
    lab.write(model=CALLED)
    lab.config(line)
    code, out, err = lab()
    assert (code, out) == (2, "")
    assert err.startswith("jaxresid: error: pyproject.toml")
    assert lab("--isolated")[0] == 1


def test_unknown_code_in_per_file_ignores_is_refused(lab):
    lab.write(model=CALLED)
    assert lab("--per-file-ignores", "*.py:JXR999")[0] == 2


@pytest.mark.parametrize(
    "argv",
    [
        ["-", "model.py"],
        ["--stdin-filename", "model.py"],
        ["--watch", "--fix"],
        ["--watch", "--fix-only"],
        ["--watch", "--add-noqa"],
        ["--watch", "-"],
        ["--show-files", "-"],
        ["--add-noqa", "-"],
        ["--add-noqa", "--fix"],
        ["--add-noqa", "--diff"],
        ["--isolated", "--config", "pyproject.toml"],
        ["--statistics", "-f", "sarif"],
    ],
)
def test_options_that_exclude_each_other(lab, argv):
    lab.write(model=CALLED)
    lab.config()
    code, out, err = lab(*argv, stdin=CALLED)
    assert (code, out) == (2, "")
    assert err.startswith("jaxresid: error: ")
    assert (lab.path / "model.py").read_text() == CALLED


def test_nothing_to_lint_is_said(lab):
    lab.put("sub/notes.txt", CALLED)
    assert lab() == (0, "All checks passed!\n", "jaxresid: warning: no Python files found\n")
    assert lab("-q")[2] == ""
    assert json.loads(lab("sub", "-f", "json")[1]) == []


# -- options


@pytest.fixture
def three(lab):
    lab.write(called=CALLED, loss=LOSS, loop=LOOP)
    return lab


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], ["JXR202", "JXR101"]),
        (["--select", "JXR2"], ["JXR202"]),
        (["--select", "JXR101"], ["JXR101"]),
        (["--select", "checkpointed-loss,called-policy"], ["JXR202", "JXR101"]),
        (["--select", "JXR1,JXR109"], ["JXR109", "JXR101"]),
        (["--ignore", "JXR1"], ["JXR202"]),
        (["--ignore", "JXR1", "--ignore", "called-policy"], []),
        (["--extend-select", "JXR109"], ["JXR202", "JXR109", "JXR101"]),
        (["--per-file-ignores", "called.py:JXR202"], ["JXR101"]),
        (["--per-file-ignores", "!called.py:JXR1"], ["JXR202"]),
        (["--exclude", "called.py"], ["JXR101"]),
        (["--extend-exclude", "loss*,x"], ["JXR202"]),
        (["loss.py", "--exclude", "loss.py"], ["JXR101"]),
        (["loss.py", "--exclude", "loss.py", "--force-exclude"], []),
    ],
)
def test_which_findings(three, argv, expected):
    out = three(*argv, "-f", "json")[1]
    assert [item["code"] for item in json.loads(out)] == expected
    # The order of options is free.
    assert three("-f", "json", *argv)[1] == out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('select = ["JXR2"]', ["JXR202"]),
        ('ignore = ["checkpointed-loss"]', ["JXR202"]),
        ('extend-select = ["JXR109"]', ["JXR202", "JXR109", "JXR101"]),
        ('per-file-ignores = { "loss.py" = ["ALL"] }', ["JXR202"]),
        ('exclude = ["called.py"]', ["JXR101"]),
        ('extend-exclude = ["called.py"]', ["JXR101"]),
    ],
)
def test_configuration_counts(three, line, expected):
    three.config(line)
    assert [code for _, code in three.found()] == expected
    assert [code for _, code in three.found("--isolated")] == ["JXR202", "JXR101"]
    (three.path / "pyproject.toml").rename(three.path / "other.toml")
    assert [code for _, code in three.found("--config", "other.toml")] == expected


def test_fixable_and_unfixable(lab):
    for argv in (["--unfixable", "JXR202"], ["--fixable", "JXR1"]):
        lab.write(model=CALLED)
        assert lab("--fix", *argv)[0] == 1
        assert (lab.path / "model.py").read_text() == CALLED
        assert json.loads(lab("-f", "json", *argv)[1])[0]["fix"] is None
    assert lab("--fix", "--fixable", "JXR202")[0] == 0
    assert (lab.path / "model.py").read_text() == NAMED


def test_gitignore(lab):
    lab.write(model=CALLED, gen__model=CALLED)
    (lab.path / ".git").mkdir()
    lab.put(".gitignore", "gen/\n")
    assert lab.found() == [("model.py", "JXR202")]
    assert len(lab.found("--no-respect-gitignore")) == 2
    assert len(lab.found("gen/model.py")) == 1


def test_excluded_standard_input(lab):
    lab.config('exclude = ["gen"]')
    lab.write(gen__model=CLEAN)
    named = "-", "--stdin-filename", "gen/model.py"
    assert len(lab.found(*named, stdin=CALLED)) == 1
    assert lab.found(*named, "--force-exclude", stdin=CALLED) == []
    code, out, _ = lab(*named, "--force-exclude", "--fix", "-q", stdin=CALLED)
    assert (code, out.startswith(CALLED)) == (0, True)
    lab.config('exclude = ["gen"]', "force-exclude = true")
    assert lab.found(*named, stdin=CALLED) == []
    assert len(lab.found(*named, "--no-force-exclude", stdin=CALLED)) == 1


def test_target_jax(lab):
    source = "import jax\n\n\ndef run(f, x):\n    return jax.checkpoint(f, concrete=True)(x)\n"
    lab.write(model=source)
    new, old = (lab("-f", "json", "--target-jax", v)[1] for v in ("0.12", "0.4"))
    assert new != old
    lab.config('target-jax = "0.4"')
    assert lab("-f", "json")[1] == old
    lab.put("pyproject.toml", '[project]\nname = "a"\ndependencies = ["jax<0.5"]\n')
    assert lab("-f", "json")[1] == old
    assert lab("-f", "json", "--isolated")[1] == new
    lab.put("pyproject.toml", '[project]\nname = "a"\ndependencies = ["jax"]\n')
    assert lab("-f", "json")[1] == new
    lab.put("uv.lock", '[[package]]\nname = "jax"\nversion = "0.4.20"\n')
    assert lab("-f", "json")[1] == old


@pytest.mark.parametrize("form", FORMATS)
def test_format_spellings(lab, monkeypatch, form):
    lab.write(model=CALLED)
    code, out, err = lab("-f", form)
    assert (code, err) == (1, "")
    assert "JXR202" in out
    assert lab("--format", form)[1] == lab("--output-format", form)[1] == out
    monkeypatch.setenv("JAXRESID_OUTPUT_FORMAT", form)
    assert lab()[1] == out
    assert lab("-f", "concise")[1] == lab("-f", "concise", "--isolated")[1]
    monkeypatch.delenv("JAXRESID_OUTPUT_FORMAT")
    lab.config(f'output-format = "{form}"')
    assert lab()[1] == out


def test_bad_format_in_the_environment(lab, monkeypatch):
    lab.write(model=CALLED)
    monkeypatch.setenv("JAXRESID_OUTPUT_FORMAT", "yaml")
    code, out, err = lab()
    assert (code, out) == (2, "")
    assert "yaml" in err
    monkeypatch.setenv("JAXRESID_OUTPUT_FORMAT", "")
    assert lab()[0] == 1


@pytest.mark.parametrize("option", ["-o", "--output", "--output-file"])
def test_output_file(lab, option):
    lab.write(model=CALLED)
    expected = lab("-f", "json")[1]
    assert lab("-f", "json", option, "out.json") == (1, "", "")
    assert (lab.path / "out.json").read_text() == expected
    assert lab("--diff", "-q", option, "out.diff") == (1, "", "")
    assert (lab.path / "out.diff").read_text().startswith("--- model.py\n")
    assert lab("--show-files", option, "out.txt") == (0, "", "")
    assert (lab.path / "out.txt").read_text() == "model.py\n"


def test_statistics(lab):
    lab.write(a=CALLED, b=CALLED, c=LOSS)
    code, out, _ = lab("--statistics")
    assert code == 1
    assert [line.split()[:2] for line in out.splitlines()] == [["2", "JXR202"], ["1", "JXR101"]]
    counted = json.loads(lab("--statistics", "-f", "json")[1])
    assert [(c["code"], c["count"], c["fixable_count"]) for c in counted] == [
        ("JXR202", 2, 2),
        ("JXR101", 1, 0),
    ]
    code, out, _ = lab("--statistics", "--fix")
    assert (code, out.split()[:2]) == (1, ["1", "JXR101"])


def test_show_files(lab):
    lab.write(b=CLEAN, a=SYNTAX, sub__c="x = 1", build__d=CALLED)
    lab.put("n.ipynb", "{}")
    lab.put("t.txt", "")
    assert lab("--show-files") == (0, "a.py\nb.py\nn.ipynb\nsub/c.py\n", "")
    assert lab("--show-files", "sub", "b.py")[1] == "b.py\nsub/c.py\n"


def test_add_noqa(lab):
    lab.write(called=CALLED, loss=LOSS, other=LOSS)
    # What follows is a path, not a reason.
    assert lab("--add-noqa", "called.py", "loss.py") == (0, "", "Silenced 2 findings.\n")
    assert "())(w, x)  # jaxresid: ignore[JXR202]\n" in (lab.path / "called.py").read_text()
    assert (lab.path / "other.py").read_text() == LOSS
    assert lab("--add-noqa=seen in a trace: fine") == (0, "", "Silenced 1 finding.\n")
    assert "ignore[JXR101] seen in a trace: fine\n" in (lab.path / "other.py").read_text()
    assert lab.found() == []
    assert lab("--add-noqa") == (0, "", "Silenced 0 findings.\n")
    assert [code for _, code in lab.found("--ignore-noqa")] == ["JXR202", "JXR101", "JXR101"]


def test_add_noqa_takes_a_path_of_that_name(lab):
    lab.put("--add-noqa", "")
    lab.write(model=CALLED)
    assert lab("--", "--add-noqa")[0] == 0
    assert (lab.path / "model.py").read_text() == CALLED


@pytest.mark.parametrize("comment", ["noqa", "noqa: JXR202", "jaxresid: ignore[called-policy]"])
def test_ignore_noqa(lab, comment):
    lab.put("model.py", CALLED.replace("(w, x)\n", f"(w, x)  # {comment}\n"))
    assert lab.found() == []
    assert lab.found("--ignore-noqa") == [("model.py", "JXR202")]
    assert lab.found() == []
    assert len(lab.found("-", "--ignore-noqa", stdin=(lab.path / "model.py").read_bytes())) == 1


def test_color(lab, monkeypatch):
    lab.write(model=CALLED)
    plain = lab()[1]
    assert "\x1b" not in plain
    colored = lab("--color", "always")[1]
    assert "\x1b[" in colored
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert lab()[1] == colored
    assert lab("--color", "never")[1] == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert lab()[1] == plain
    assert lab("--color", "always")[1] == colored
    assert "\x1b" not in lab("-f", "json", "--color", "always")[1]


def test_quiet(lab):
    lab.write(model=CALLED)
    _, out, _ = lab("-f", "concise")
    code, quiet, _ = lab("-f", "concise", "-q")
    assert (code, quiet) == (1, out.splitlines(keepends=True)[0])
    lab.write(model=CLEAN)
    assert lab("--quiet") == (0, "", "")
    assert lab("--quiet", "--fix-only") == (0, "", "")


def test_show_fixes(lab):
    lab.write(a=CALLED, b=CALLED + LOSS)
    code, out, err = lab("--fix", "--show-fixes", "-f", "concise")
    assert code == 1
    assert err == "Fixed:\n  a.py: JXR202 Remove the empty parentheses\n" + (
        "  b.py: JXR202 Remove the empty parentheses\n"
    )
    assert "Fixed 2 findings." in out
    assert [line.split(":")[0] for line in out.splitlines() if "JXR" in line] == ["b.py"]


POOL = """
import sys
from jaxresid.cli.main import run
from jaxresid.linter.run import files
files._POOL_NBYTES = 0
for form in sys.argv[1:]:
    for number, jobs in enumerate((["-j1"], ["-j2"], ["-j2"], [])):
        run(["lint", "-f", form, "-o", f"{form}-{number}.out", *jobs])
assert "jax" not in sys.modules
"""


@pytest.mark.integration
def test_jobs_and_runs_give_the_same_bytes(lab):
    """In a process of its own: this one has JAX's threads, with which the linter does not fork."""
    lab.write(model=MODEL, train=TRAIN, syntax=SYNTAX)
    for n in range(9):
        lab.put(f"d{n % 3}/m{n}.py", [CALLED, LOSS, CLEAN][n % 3] + f"\nn = {n}\n" * n)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", POOL, *FORMATS]
    subprocess.run(command, cwd=lab.path, env=env, check=True, stderr=subprocess.PIPE)
    for form in FORMATS:
        outputs = {(lab.path / f"{form}-{n}.out").read_bytes() for n in range(4)}
        assert len(outputs) == 1
    found = [
        (i["filename"], i["location"]["row"])
        for i in json.loads((lab.path / "json-0.out").read_text())
    ]
    assert found == sorted(found)
    assert len({name for name, _ in found}) == 8


def test_a_process_that_has_jax_is_not_forked(lab, monkeypatch):
    monkeypatch.setattr("jaxresid.linter.run.workers._POOL_NBYTES", 0)
    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", None)
    assert "jax" in sys.modules
    lab.write(a=CALLED, b=CALLED)
    assert lab.found("-j2") == [("a.py", "JXR202"), ("b.py", "JXR202")]


# -- fixing


def test_fix_writes_only_what_it_says(lab):
    path = lab.put("model.py", CALLED)
    other = lab.put("other.py", LOSS)
    before = other.stat().st_mtime_ns
    assert lab("--fix", "-f", "concise")[1].endswith("1 fixable with --fix --unsafe-fixes.\n")
    assert path.read_text() == NAMED
    assert other.stat().st_mtime_ns == before
    assert lab("--fix", "--unsafe-fixes", "-f", "concise") == (
        0,
        "Fixed 1 finding.\nAll checks passed!\n",
        "",
    )
    assert other.read_text() == LOSS.replace("jax.checkpoint(loss)", "loss")
    assert sorted(p.name for p in lab.path.iterdir() if p.is_file()) == ["model.py", "other.py"]


@pytest.mark.parametrize("argv", [[], ["--diff", "--fix"], ["--diff"], ["--show-files", "--fix"]])
def test_nothing_is_written_unasked(lab, argv):
    path = lab.put("model.py", CALLED)
    lab(*argv)
    assert path.read_text() == CALLED


def test_configured_fix(lab):
    path = lab.put("model.py", CALLED)
    lab.config("fix = true")
    assert lab("--no-fix")[0] == 1
    assert path.read_text() == CALLED
    assert lab()[0] == 0
    assert path.read_text() == NAMED
    lab.config("fix = true", "unsafe-fixes = true")
    path.write_text(LOSS)
    assert lab("--no-unsafe-fixes")[0] == 1
    assert lab()[0] == 0


LATIN = "# -*- coding: latin-1 -*-\n# caf\xe9\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\xef\xbb\xbf" + CALLED.encode(), b"\xef\xbb\xbf" + NAMED.encode()),
        ((LATIN + CALLED).encode("latin-1"), (LATIN + NAMED).encode("latin-1")),
        (CALLED.replace("\n", "\r\n").encode(), NAMED.replace("\n", "\r\n").encode()),
        (CALLED.replace("\n", "\r").encode(), NAMED.replace("\n", "\r").encode()),
        (CALLED.rstrip("\n").encode(), NAMED.rstrip("\n").encode()),
        (f"\f\n{CALLED}\n\n# \u2028 \U0001f600 \t \n".encode(), None),
    ],
    ids=["BOM", "latin-1", "CRLF", "CR", "no newline at the end", "form feed"],
)
def test_fix_keeps_the_rest(lab, before, after):
    after = after or before.replace(b"saveable()", b"saveable")
    path = lab.put("model.py", before)
    path.chmod(0o755)
    assert lab("--fix")[0] == 0
    assert path.read_bytes() == after
    assert path.stat().st_mode & 0o777 == 0o755
    assert lab.raw("-", "--fix", "-q", stdin=before)[1] == after
    lab.put("model.py", before)
    assert lab("--add-noqa")[0] == 0
    silenced = path.read_bytes()
    comment = b"  # jaxresid: ignore[JXR202]"
    assert silenced.replace(comment, b"") == before
    assert comment in silenced


def test_fix_through_a_link(lab):
    real = lab.put("lib/real.py", CALLED)
    link = lab.path / "link.py"
    link.symlink_to("lib/real.py")
    assert lab("--fix", "link.py")[0] == 0
    assert link.is_symlink()
    assert real.read_text() == NAMED


def test_file_that_changes_while_it_is_fixed(lab, monkeypatch):
    path = lab.put("model.py", CALLED)
    fixed = LintRun.fix_content

    def edited_meanwhile(*args):
        path.write_text("mine = 1\n")
        return fixed(*args)

    monkeypatch.setattr(LintRun, "fix_content", edited_meanwhile)
    code, _, err = lab("--fix")
    assert (code, "changed while" in err) == (2, True)
    assert path.read_text() == "mine = 1\n"
    assert [p.name for p in lab.path.iterdir() if p.is_file()] == ["model.py"]


@pytest.mark.parametrize(
    "source", [CALLED, CALLED.rstrip("\n"), f"\f\n{CALLED}", f"{CALLED}\f\n\n", f"{CALLED}\x1c = 1"]
)
def test_diff_applies(lab, source):
    if "\x1c" in source:
        source = source.replace("\x1c", "y = '\x1c\u2028'; x")
    path = lab.put("model.py", source)
    code, out, err = lab("--diff")
    assert (code, err) == (1, "Would make 1 fix.\n")
    lab.put("fix.diff", out)
    done = subprocess.run(["git", "apply", "-p0", "fix.diff"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert path.read_text() == source.replace("saveable()", "saveable")
    assert lab("--diff") == (0, "", "No fixes.\n")


# -- standard input


def test_standard_input(lab):
    assert lab.found("-", stdin=CALLED) == [("-", "JXR202")]
    code, out, err = lab("-", "-f", "concise", "--stdin-filename", "pkg/a.py", stdin=CALLED)
    assert (code, out.split(":")[0], err) == (1, "pkg/a.py", "")
    assert lab("-", stdin=b"")[0] == 0
    assert lab.found("-", stdin=SYNTAX) == [("-", "invalid-syntax")]
    assert list(lab.path.iterdir()) == []


def test_fixed_standard_input(lab):
    code, out, err = lab("-", "--fix", "-f", "concise", stdin=CALLED + LOSS)
    assert (code, out) == (1, NAMED + LOSS)
    assert err.startswith("-:15:31: JXR101 ")
    assert "Fixed 1 finding.\n" in err
    assert lab("-", "--fix", "--fix-only", stdin=CALLED + LOSS) == (0, NAMED + LOSS, "")
    assert lab("-", "--fix", stdin=CLEAN)[:2] == (0, CLEAN)
    code, out, err = lab("-", "--fix", "-f", "json", "-o", "left.json", stdin=CALLED + LOSS)
    assert (code, out, err) == (1, NAMED + LOSS, "")
    assert len(json.loads((lab.path / "left.json").read_text())) == 1
    code, out, err = lab("-", "--diff", "--stdin-filename", "a.py", stdin=CALLED)
    assert (code, out.splitlines()[:2]) == (1, ["--- a.py", "+++ a.py"])
    # What cannot be parsed comes back as it was.
    code, out, err = lab("-", "--fix", stdin=SYNTAX)
    assert (code, out) == (1, SYNTAX)
    assert "invalid-syntax" in err


def test_report_beside_the_fixed_source_may_go_to_a_file(lab, monkeypatch):
    """Not by way of /dev/stderr: replacing that file, as root can, would break the machine."""
    with open(lab.path / "err", "w") as err:
        monkeypatch.setattr(sys, "stderr", err)
        code, out, _ = lab("--fix", "-", stdin=CALLED + LOSS)
    assert (code, out) == (1, NAMED + LOSS)
    assert "JXR101" in (lab.path / "err").read_text()


def test_the_project_around_a_buffer(lab):
    lab.config()
    lab.write(model=MODEL, train=TRAIN)
    named = "-", "--stdin-filename", "model.py"
    assert lab.found(*named, stdin=MODEL) == [("model.py", "JXR101")]
    # The buffer counts, not the file.
    assert lab.found(*named, stdin=MODEL.replace("@jax.checkpoint\n", "")) == []
    lab.write(model=MODEL.replace("@jax.checkpoint\n", ""))
    assert lab.found(*named, stdin=MODEL) == [("model.py", "JXR101")]
    lab.write(train="import model\n")
    assert lab.found(*named, stdin=MODEL) == []


def test_the_project_has_the_buffer_and_not_the_file(lab):
    policy = "jax.checkpoint_policies.save_only_these_names('kept')"
    lab.config()
    lab.write(
        use=f"import jax\n\n\ndef run(f, x):\n    return jax.checkpoint(f, policy={policy})(x)\n"
    )
    use = (lab.path / "use.py").read_text()
    define = "from jax.ad_checkpoint import checkpoint_name\n\n\ndef f(x):\n"
    define += "    return checkpoint_name(x * x, 'kept') * 2\n"
    lab.write(other=define.replace("'kept'", "'other'"))
    named = "-", "--stdin-filename", "use.py", "--select", "JXR301"
    assert lab.found(*named, stdin=use) == [("use.py", "JXR301")]
    assert lab.found(*named, stdin=use + define) == []
    lab.write(use=use + define)
    assert lab.found(*named, stdin=use) == [("use.py", "JXR301")]


@pytest.mark.parametrize("configured", [True, False])
def test_one_file_sees_what_is_beside_it(lab, monkeypatch, configured):
    if configured:
        lab.config()
    lab.write(model=MODEL, train=TRAIN)
    assert lab.found("model.py") == [("model.py", "JXR101")]
    (lab.path / "elsewhere").mkdir()
    monkeypatch.chdir(lab.path / "elsewhere")
    assert len(lab.found(lab.path / "model.py")) == 1


# -- files that cannot be linted


def test_unusual_files_are_findings_and_the_others_are_linted(lab):
    lab.write(good=CALLED, syntax=SYNTAX, nul="import jax\nx\0 = jax.checkpoint(f)\n")
    lab.put("undecodable.py", b"import jax\nx = jax.checkpoint(f)  # \xff\n")
    lab.put("broken.ipynb", '{"cells": "jax.checkpoint("}')
    lab.put("minus.py", f"import jax\nx = jax.checkpoint({'-' * 20000}f)\n")
    (lab.path / "gone.py").symlink_to("nowhere.py")
    (lab.path / "circle.py").symlink_to("circle.py")
    (lab.path / "loop").symlink_to(".")
    (lab.path / "directory.py").mkdir()
    os.mkfifo(lab.path / "pipe.py")
    expected = [
        ("broken.ipynb", "invalid-syntax"),
        ("circle.py", "unreadable"),
        ("gone.py", "unreadable"),
        ("good.py", "JXR202"),
        ("minus.py", "invalid-syntax"),
        ("nul.py", "invalid-syntax"),
        ("pipe.py", "unreadable"),
        ("syntax.py", "invalid-syntax"),
        ("undecodable.py", "invalid-syntax"),
    ]
    assert lab.found() == expected
    assert lab.found("gone.py", "circle.py", "pipe.py", "directory.py") == [
        item for item in expected if item[1] == "unreadable"
    ]
    for argv in ([], ["pipe.py"]):
        assert (
            "pipe.py:1:1: unreadable: cannot be read: it is not a regular"
            in lab("-f", "concise", *argv)[1]
        )
    code, out, _ = lab("--fix", "-f", "concise")
    assert (code, out.count("\n"), "Fixed 1 finding." in out) == (1, 10, True)


def test_file_that_vanishes(lab, monkeypatch):
    lab.write(here=CALLED, vanishing=CALLED)
    from jaxresid.linter.run import files

    discover = files.discover

    def vanish(*args):
        found = discover(*args)
        (lab.path / "vanishing.py").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(files, "discover", vanish)
    assert lab.found() == [("here.py", "JXR202"), ("vanishing.py", "unreadable")]


def test_forbidden_files(lab, monkeypatch):
    lab.write(secret=CALLED, closed__a=CALLED, good=CALLED)

    def refusing(function, name):
        def refuse(path, *args, **more):
            if os.path.basename(path) == name:
                raise PermissionError(13, "Permission denied", path)
            return function(path, *args, **more)

        return refuse

    # As root, chmod forbids nothing.
    monkeypatch.setattr("builtins.open", refusing(open, "secret.py"))
    monkeypatch.setattr("os.scandir", refusing(os.scandir, "closed"))
    assert lab.found() == [
        ("closed", "unreadable"),
        ("good.py", "JXR202"),
        ("secret.py", "unreadable"),
    ]
    assert "Permission denied" in lab("-f", "concise", "secret.py")[1]


def test_directory_that_cannot_be_written(lab, monkeypatch):
    lab.write(model=CALLED)

    def refuse(*args, **more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    for argv in (["--fix"], ["--add-noqa"]):
        code, out, err = lab(*argv)
        assert (code, out) == (2, "")
        assert err == "jaxresid: error: cannot write model.py: Permission denied\n"


def test_too_deep_for_the_rules(lab, monkeypatch):
    def too_deep(*args, **more):
        raise RecursionError

    lab.write(a=CALLED, b=CALLED)
    monkeypatch.setattr("jaxresid.linter.run.engine.lint_bytes", too_deep)
    monkeypatch.setattr("jaxresid.linter.run.engine.fix_bytes", too_deep)
    assert lab.found() == [("a.py", "invalid-syntax"), ("b.py", "invalid-syntax")]
    monkeypatch.setattr(
        LintRun, "run", lambda self, *a, **k: (self.file("a.py", lab.path / "a.py"),)
    )
    assert lab("--fix")[0] == 1


# -- safety


@pytest.mark.integration
def test_nothing_is_imported_or_run(lab):
    mark = "open('ran-{0}', 'w').close()\nprint('ran {0}')\n"
    names = "jax click libcst rich ast json conftest sitecustomize usercustomize model jaxresid"
    for name in names.split():
        lab.put(f"{name}.py", mark.format(name) + CALLED)
    lab.put("setup.py", mark.format("setup") + CALLED)
    lab.put("pkg/__init__.py", mark.format("pkg") + CALLED)
    lab.config()
    # As the command that is installed: without the working directory on the path.
    command = "import sys; sys.path.remove(''); from jaxresid.cli.main import run; "
    command += "code = run(['lint', *sys.argv[1:]]); print(code, sorted(sys.modules))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for argv in (["-f", "concise", "."], ["--fix", "-f", "concise"]):
        done = subprocess.run(
            [sys.executable, "-c", command, *argv],
            cwd=lab.path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        assert "ran" not in done.stdout.partition("[")[0]
        assert "'jax'" not in done.stdout
        assert "'jaxlib'" not in done.stdout
    assert [p.name for p in lab.path.rglob("ran-*")] == []
    assert "nothing_saveable()" not in (lab.path / "model.py").read_text()


@pytest.mark.integration
def test_a_clean_run_imports_little(lab):
    lab.write(a="import os\n", b="from orbax import checkpoint\n", c="import jax\nx = 1\n")
    lab.config('select = ["ALL"]')
    command = "import sys; from jaxresid.cli.main import run; code = run(['lint']); "
    command += "print(code, *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=lab.path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    last = done.stdout.splitlines()[-1].split()
    assert last[0] == "0"
    assert not {"jax", "jaxlib", "numpy", "libcst", "rich", "packaging"} & set(last)
    lab.write(d=CLEAN)
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=lab.path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    last = done.stdout.splitlines()[-1].split()
    assert not {"jax", "jaxlib", "numpy", "libcst"} & set(last)


# -- watching


def lines_until(stream, wanted):
    seen = []
    for line in stream:
        seen.append(line)
        if wanted in line:
            return "".join(seen)
    raise AssertionError(f"ended without {wanted!r}: {seen}")


@pytest.mark.integration
def test_watch(lab):
    lab.config()
    lab.write(model=MODEL, train=TRAIN)
    # A shell's background jobs, and so the tests in one, start with SIGINT ignored.
    handled = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "runpy.run_module('jaxresid', run_name='__main__')"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", handled, "lint", "--watch", "-f", "concise", "model.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=lab.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    killer = threading.Timer(120, child.kill)
    killer.start()
    try:
        assert "JXR101" in lines_until(child.stdout, "Watching")
        lab.write(train="import model\n")  # what the finding depends on
        assert "All checks passed!" in lines_until(child.stdout, "Watching")
        lab.write(model=CALLED)
        assert "JXR202" in lines_until(child.stdout, "Watching")
        lab.config('ignore = ["JXR202"]')
        assert "All checks passed!" in lines_until(child.stdout, "Watching")
        lab.config('select = ["NO"]')
        assert "unknown rule `NO`" in lines_until(child.stdout, "Watching")
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 130
        assert "Traceback" not in child.stdout.read()
    finally:
        child.kill()
        child.wait()
        killer.cancel()


# -- notebooks


def notebook(*sources, extra=""):
    cells = [
        {
            "cell_type": "code",
            "execution_count": 7,
            "metadata": {"a": "\xe9"},
            "outputs": [],
            "source": source.splitlines(keepends=True),
        }
        for source in sources
    ]
    content = {"cells": cells, "metadata": {"x": [1, 2]}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n" + extra


def test_notebook(lab):
    raw = notebook("%matplotlib inline\nimport jax\n", "# two\n" + CALLED.partition("\n")[2])
    path = lab.put("n.ipynb", raw)
    code, out, _ = lab("-f", "json")
    (item,) = json.loads(out)
    assert (code, item["code"], item["cell"], item["location"]["row"]) == (1, "JXR202", 2, 5)
    assert "n.ipynb:cell 2:5:" in lab("-f", "concise")[1]
    assert lab("--fix")[0] == 0
    assert path.read_bytes() == raw.replace("saveable()", "saveable").encode()
    code, out, _ = lab.raw("-", "--fix", "-q", "--stdin-filename", "n.ipynb", stdin=raw)
    assert (code, out) == (0, path.read_bytes())


# -- the other two commands


def test_explain_every_rule(lab, capsysbinary):
    for rule in all_rules():
        for word in (rule.code, rule.code.lower(), rule.name):
            assert run_command(["explain", word]) == 0
            assert rule.name in capsysbinary.readouterr()[0].decode()
    assert run_command(["explain", "JXR999"]) == 2
    assert run_command(["rules", "-f", "json"]) == 0
    listed = json.loads(capsysbinary.readouterr()[0])
    assert [rule["code"] for rule in listed] == list(KNOWN)


# -- configurations


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_each_file_has_the_configuration_nearest_to_it(lab, order):
    """In whatever order the files are named: pre-commit shuffles them."""
    for name, ignored in (("a", '["JXR2"]'), ("b", "[]")):
        (lab.path / name).mkdir()
        (lab.path / name / "pyproject.toml").write_text(f"[tool.jaxresid]\nignore = {ignored}\n")
        (lab.path / name / "x.py").write_text(CALLED)
    expected = [("b/x.py", "JXR202")]
    assert lab.found(*(f"{name}/x.py" for name in order)) == expected
    assert lab.found(*order) == expected
    assert lab.found() == expected
    assert [c for _, c in lab.found("--isolated")] == ["JXR202", "JXR202"]
    assert [c for _, c in lab.found("--config", "b/pyproject.toml")] == ["JXR202"] * 2
    (lab.path / "a" / "pyproject.toml").write_text("[tool.jaxresid]\nselect = ['JXR999']\n")
    code, out, _ = lab("a/x.py", "b/x.py", "-f", "concise")
    assert code == 2
    assert "a/pyproject.toml:2:1: invalid-configuration: unknown rule `JXR999`" in out
    assert "b/x.py:" in out


def test_a_configuration_further_down_may_select_more(lab):
    (lab.path / "deep").mkdir()
    (lab.path / "deep" / "pyproject.toml").write_text("[tool.jaxresid]\nselect = ['JXR109']\n")
    (lab.path / "deep" / "x.py").write_text(LOOP)
    lab.write(x=LOOP)
    assert lab.found() == [("deep/x.py", "JXR109")]


# -- where output goes


def test_a_link_is_written_through(lab):
    lab.write(x=CALLED)
    (lab.path / "real").mkdir()
    (lab.path / "out.txt").symlink_to(lab.path / "real" / "out.txt")
    assert lab("x.py", "-o", "out.txt")[0] == 1
    assert (lab.path / "out.txt").is_symlink()
    assert "JXR202" in (lab.path / "real" / "out.txt").read_text()


def test_the_name_of_an_open_file_is_not_replaced(lab):
    """As root, replacing /dev/stdout would take it from every process on the machine."""
    lab.write(x=CALLED)
    target = lab.path / "redirected.txt"
    with target.open("w") as file:
        done = spawn("lint", "x.py", "-o", "/dev/stdout", cwd=lab.path, stdout=file)
        assert done.wait() == 1
    assert "JXR202" in target.read_text()
    assert os.path.realpath("/dev/stdout") != "/dev/stdout"


def test_what_a_fix_changes_elsewhere_is_seen(lab):
    """The derivative goes, and with it what was found in the other file."""
    lab.write(
        model="import jax\n\n\n@jax.checkpoint\ndef loss(w):\n    return (w * w).sum()\n",
        train="import jax\nfrom model import loss\n\ncp = jax.checkpoint_policies\n\n\n"
        "def step(w):\n"
        "    return jax.grad(jax.checkpoint(loss, policy=cp.dots_saveable()))(w)\n",
    )
    before = lab.found()
    code, _, _ = lab("--fix", "-q")
    assert ("train.py", "JXR202") in before
    assert ("train.py", "JXR202") not in lab.found()
    assert code == int(bool(lab.found()))
