"""Checkouts of revisions: what is in them, and that nothing is left of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxresid.base.errors import InputsError
from jaxresid.revisions.git import (
    check_submodules,
    checked_out,
    is_revision,
    merge_base,
    repository_of,
    revision,
)
from tests.repositories import CHANGED, MODEL


def test_a_checkout_has_the_files_of_the_revision(repository, left_over):
    with checked_out(revision("main", repository)) as tree:
        assert (tree / "model.py").read_text() == MODEL
        assert left_over(repository) == 1
    assert not tree.exists()
    assert not tree.parent.exists()
    assert left_over(repository) == 0
    assert (repository / "model.py").read_text() == CHANGED


def test_nothing_is_left_of_a_checkout_in_which_something_fails(repository, left_over):
    def fail():
        with checked_out(revision("HEAD", repository)) as tree:
            trees.append(tree)
            (tree / "made.txt").write_text("by an import")
            raise ZeroDivisionError

    trees = []
    with pytest.raises(ZeroDivisionError):
        fail()
    assert not trees[0].parent.exists()
    assert left_over(repository) == 0


HOLDING = """
import sys, time
from pathlib import Path
from jaxresid.revisions.git import checked_out, revision
try:
    with checked_out(revision("main", Path.cwd())) as tree:
        print(tree, flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_an_interrupted_checkout(number, repository, left_over, interruptible):
    path = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        tree = Path(process.stdout.readline().strip())
        assert (tree / "model.py").exists()
        process.send_signal(number)
        assert process.wait(timeout=30) == 130
    assert not tree.parent.exists()
    assert left_over(repository) == 0


@pytest.mark.integration
def test_nothing_is_left_whenever_it_is_interrupted(repository, left_over, interruptible, git):
    for i in range(300):  # so that git takes its time
        (repository / f"file{i}.txt").write_text("text\n" * 2000)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "Many")
    path = str(Path(__file__).parents[2])
    for delay in (0.1, 0.15, 0.2, 0.25, 0.3):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDING],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
        assert left_over(repository) == 0
    assert git(repository, "worktree", "prune", "--verbose") == ""


def test_no_hook_runs(repository, git):
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    with checked_out(revision("main", repository)) as tree:
        assert not (tree / "ran").exists()


def test_a_hook_may_call_us(repository, monkeypatch, git):
    """Git tells hooks which index they are about; a checkout has one of its own."""
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git" / "index"))
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.chdir(repository)
    with checked_out(revision("main", repository)) as tree:
        assert (tree / "model.py").read_text() == MODEL
    assert git(repository, "diff", "--cached", "--stat") == ""


def test_what_is_no_revision(repository):
    with pytest.raises(InputsError, match=r"^no revision 'nope' in .*project$"):
        revision("nope", repository)
    with pytest.raises(InputsError, match="no revision '--all'"):
        revision("--all", repository)
    assert is_revision("HEAD", repository)
    assert not is_revision("model.py", repository)


def test_no_repository(tmp_path):
    assert repository_of(tmp_path) is None
    with pytest.raises(InputsError, match=r"cannot be a revision: .* is in no git repository"):
        revision("main", tmp_path)


def test_a_branch_of_the_remote_is_named(repository, git, tmp_path):
    git(repository, "branch", "topic")
    git(tmp_path, "clone", "-q", str(repository), "copy")
    with pytest.raises(InputsError, match=r"no revision 'topic' in .*; did you mean origin/topic"):
        revision("topic", tmp_path / "copy")


def test_a_shallow_clone_says_so(repository, git, tmp_path):
    git(repository, "commit", "-q", "-a", "-m", "Two")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "copy")
    with pytest.raises(InputsError, match=r"the clone is shallow, and git fetch --unshallow"):
        revision("HEAD~1", tmp_path / "copy")


def test_merge_base(repository, git):
    first = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "checkout", "-q", "-b", "topic")
    git(repository, "commit", "-q", "-a", "-m", "Two")
    git(repository, "checkout", "-q", "main")
    git(repository, "commit", "-q", "--allow-empty", "-m", "Three")
    assert merge_base("main", "topic", repository).commit == first


@pytest.fixture
def with_submodule(repository, git, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q", "-b", "main")
    (library / "layers.py").write_text("WIDTH = 1\n")
    git(library, "add", ".")
    git(library, "commit", "-q", "-m", "One")
    git(repository, "submodule", "add", "-q", str(library), "library")
    git(repository, "commit", "-q", "-a", "-m", "With a library")
    return repository


def test_submodules_are_there(with_submodule, git, left_over):
    submodule = with_submodule / "library"
    (submodule / "layers.py").write_text("WIDTH = 2\n")
    git(submodule, "commit", "-q", "-a", "-m", "Two")
    git(with_submodule, "commit", "-q", "-a", "-m", "Newer")
    with checked_out(revision("HEAD~1", with_submodule)) as tree:
        assert (tree / "library" / "layers.py").read_text() == "WIDTH = 1\n"
    assert not tree.parent.exists()
    assert left_over(with_submodule) == left_over(submodule) == 0


def test_a_changed_submodule_is_refused(with_submodule):
    check_submodules(with_submodule)
    (with_submodule / "library" / "layers.py").write_text("WIDTH = 3\n")
    with pytest.raises(InputsError, match="the submodule library has uncommitted changes"):
        check_submodules(with_submodule)


def test_a_submodule_without_the_commit(with_submodule, git, left_over):
    commit = "1" * 40
    git(with_submodule, "update-index", "--cacheinfo", f"160000,{commit},library")
    git(with_submodule, "commit", "-q", "-m", "Of nobody")
    with (
        pytest.raises(InputsError, match="the submodule library does not have the commit 11111111"),
        checked_out(revision("HEAD", with_submodule)),
    ):
        pass
    assert left_over(with_submodule) == 0


def test_git_is_needed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Exception, match="git is not installed"):
        repository_of(tmp_path)
