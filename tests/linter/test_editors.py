"""The set-ups of the documentation: what editors and services read is what the commands print.

They are those of docs/how-to/pre-commit-and-editors.md.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.where import ROOT

PAGE = ROOT / "docs" / "how-to" / "pre-commit-and-editors.md"
RUFF = shutil.which("ruff", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

# A warning, an error with a safe fix, and a file that does not parse; with wide characters, since
# columns are counted in characters.
LOSS = """import jax


def loss(w, x):
    return (w @ x).sum()


text = "\N{GRINNING FACE}"; step = jax.grad(jax.checkpoint(loss))
"""
CALLED = """import jax


def run(layer, w, x):
    return jax.checkpoint(layer, policy=jax.checkpoint_policies.nothing_saveable())(w, x)
"""
SYNTAX = "import jax\njax.checkpoint(\n"
# (file, row, column, code), 1-based.
FOUND = [
    ("dir/called.py", 5, 41, "JXR202"),
    ("loss.py", 8, 29, "JXR101"),
    ("syntax.py", 2, 15, "invalid-syntax"),
]


def block(language, containing):
    """The one fenced block of the page in a language that contains a string."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.M)
    (found,) = (text for text in blocks if containing in text)
    return found


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "called.py").write_text(CALLED)
    (tmp_path / "loss.py").write_text(LOSS)
    (tmp_path / "syntax.py").write_text(SYNTAX)
    # An editor must get findings where the command line would get fixes.
    (tmp_path / "pyproject.toml").write_text("[tool.jaxresid]\nfix = true\n")
    return tmp_path


def lint(argv, cwd, stdin="", code=1):
    assert argv[0] == "jaxresid"
    done = subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=cwd,
        input=stdin,
        env={**os.environ, "PYTHONPATH": str(ROOT), "FORCE_COLOR": "", "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


@pytest.mark.integration
def test_efm(tree):
    text = block("yaml", "lint-command")
    command = re.search(r'lint-command: "(.*)"', text)[1].replace("${INPUT}", "dir/called.py")
    assert "lint-stdin: true" in text
    (form,) = json.loads(re.search(r"lint-formats: (.*)", text)[1])
    parts = {"%f": "(?P<f>.+?)", "%l": r"(?P<l>\d+)", "%c": r"(?P<c>\d+)", "%m": "(?P<m>.+)"}
    pattern = re.sub("%[flcm]", lambda m: parts[m[0]], form)
    (line,) = lint(shlex.split(command), tree, CALLED).splitlines()
    match = re.fullmatch(pattern, line)
    assert (match["f"], match["l"], match["c"]) == ("dir/called.py", "5", "41")
    assert match["m"].startswith("JXR202 [*] ")


@pytest.mark.integration
def test_github_action(tree):
    text = block("yaml", "upload-sarif")
    (command,) = re.findall(r"- run: (jaxresid .*)", text)
    (uploaded,) = re.findall(r"sarif_file: (.*)", text)
    assert "security-events: write" in text
    (tree / "pyproject.toml").unlink()
    assert lint(shlex.split(command), tree, code=0) == ""
    sarif = json.loads((tree / uploaded).read_text())
    found = []
    for result in sarif["runs"][0]["results"]:
        place = result["locations"][0]["physicalLocation"]
        region = place["region"]
        uri = place["artifactLocation"]["uri"]
        found.append((uri, region["startLine"], region["startColumn"], result["ruleId"]))
    assert sorted(found) == FOUND


def test_pre_commit_hook():
    text = block("yaml", "hooks:")
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text()
    (named,) = re.findall(r"- id: (\S+)", text)
    known = re.findall(r"- id: (\S+)", hooks)
    assert named in known
    assert all(f"`{hook}`" in PAGE.read_text() for hook in known if hook != named)


@pytest.mark.tools
@pytest.mark.skipif(RUFF is None, reason="needs ruff")
def test_ruff_leaves_our_codes_alone(tmp_path):
    table = block("toml", "external")
    source = "import jax  # noqa: F401, JXR101\n"
    for config, kept in ((table, True), ("", False)):
        (tmp_path / "pyproject.toml").write_text(config)
        (tmp_path / "a.py").write_text(source)
        subprocess.run(
            [RUFF, "check", "--no-cache", "--select", "RUF102,F401", "--fix", "-q", "a.py"],
            cwd=tmp_path,
            check=False,
        )
        assert ("JXR101" in (tmp_path / "a.py").read_text()) == kept
