"""The hooks of .pre-commit-hooks.yaml, run by the real pre-commit."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.where import ROOT

MANIFEST = ROOT / ".pre-commit-hooks.yaml"
PRE_COMMIT = shutil.which(
    "pre-commit", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
)
needs_pre_commit = pytest.mark.skipif(PRE_COMMIT is None, reason="needs pre-commit")

GOOD = "import jax\n\n\ndef run(layer, w, x):\n    return jax.checkpoint(layer)(w, x)\n"
BAD = GOOD.replace("(layer)", "(layer, policy=jax.checkpoint_policies.nothing_saveable())")
FIXED = BAD.replace("saveable()", "saveable")


def hooks():
    """id -> key -> value as written, for the keys on one line."""
    found = {}
    for text in re.split(r"^- ", MANIFEST.read_text(), flags=re.M)[1:]:
        pairs = re.findall(r"^\s*([a-z_]+): (.*)$", text, re.M)
        found[dict(pairs)["id"]] = dict(pairs)
    return found


def test_hooks():
    entries = {name: hook["entry"] for name, hook in hooks().items()}
    assert entries == {
        "jaxresid-lint": "jaxresid lint --force-exclude",
        "jaxresid-fix": "jaxresid lint --force-exclude --fix",
    }
    for hook in hooks().values():
        assert hook["language"] == "python"
        assert hook["types_or"] == "[python, pyi, jupyter]"
        assert hook["require_serial"] == "true"


@needs_pre_commit
def test_manifest_is_valid():
    subprocess.run([PRE_COMMIT, "validate-manifest", MANIFEST], check=True)


@pytest.mark.parametrize("hook", ["jaxresid-lint", "jaxresid-fix"])
def test_entries_run_as_pre_commit_calls_them(tmp_path, hook):
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "gen").mkdir()
    (tmp_path / "gen" / "bad.py").write_text(BAD)
    (tmp_path / "pyproject.toml").write_text('[tool.jaxresid]\nexclude = ["gen"]\n')
    argv = shlex.split(hooks()[hook]["entry"])
    done = subprocess.run(
        [sys.executable, "-m", *argv, "gen/bad.py", "bad.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    fixes = hook == "jaxresid-fix"
    assert done.returncode == (0 if fixes else 1), done.stderr
    assert (tmp_path / "bad.py").read_text() == (FIXED if fixes else BAD)
    assert (tmp_path / "gen" / "bad.py").read_text() == BAD
    assert "gen" not in done.stdout


def git(*argv, cwd):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(
        ["git", *identity, "-c", "core.hooksPath=/dev/null", *argv],
        cwd=cwd,
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A repository with this tree as it is now."""
    copy = tmp_path_factory.mktemp("hooks") / "jaxresid"
    copy.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", copy)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "jaxresid", copy / "jaxresid", ignore=ignore)
    git("init", "-q", cwd=copy)
    git("add", "-A", cwd=copy)
    git("commit", "-q", "-m", "now", cwd=copy)
    return copy


@pytest.mark.slow
@needs_pre_commit
def test_try_repo(source, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "bad.py").write_text(BAD)
    (project / "good.py").write_text(GOOD)
    git("init", "-q", cwd=project)
    git("add", "-A", cwd=project)
    env = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache"), "PRE_COMMIT_COLOR": "never"}
    for name in ("PYTHONPATH", "FORCE_COLOR"):  # the environment that the hook makes must do
        env.pop(name, None)

    def attempt(hook):
        done = subprocess.run(
            [PRE_COMMIT, "try-repo", source, hook, "--all-files", "--verbose"],
            cwd=project,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    code, out = attempt("jaxresid-lint")
    assert code == 1, out
    assert "bad.py:5:41" in out
    assert "JXR202" in out
    assert "good.py" not in out
    assert (project / "bad.py").read_text() == BAD

    code, out = attempt("jaxresid-fix")
    assert code == 1, out
    assert "files were modified by this hook" in out
    assert (project / "bad.py").read_text() == FIXED
    assert (project / "good.py").read_text() == GOOD

    git("add", "-A", cwd=project)
    for hook in ("jaxresid-lint", "jaxresid-fix"):
        code, out = attempt(hook)
        assert code == 0, out
        assert "All checks passed!" in out
