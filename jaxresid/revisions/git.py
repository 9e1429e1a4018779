"""Ask git, and check a revision out into a folder that goes away again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.base.interrupts import blocking_interrupts

# What git sets for the hooks that it runs: with it a checkout elsewhere would change this one.
_OF_HOOKS = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
)
_SUBMODULE = "160000"


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit of the repository that a folder is in.

    Attributes:
      name: what the user calls it: `main`, `HEAD~1`.
      commit: its hash.
      root: the top folder of the repository.
    """

    name: str
    commit: str
    root: Path


def revision(name: str, folder: Path) -> Revision:
    """Return the commit that a name stands for.

    Raises:
      InputsError: there is no repository, or none of that name in it.
    """
    root = repository_of(folder)
    if root is None:
        raise InputsError(f"{name} cannot be a revision: {folder} is in no git repository")
    commit = _commit(name, folder)
    if commit is None:
        raise InputsError(f"no revision {name!r} in {root}{_hint(name, folder)}")
    return Revision(name, commit, root)


def is_revision(name: str, folder: Path) -> bool:
    """Return whether a name stands for a commit of the repository that a folder is in."""
    try:
        revision(name, folder)
    except InputsError:
        return False
    return True


def merge_base(one: str, other: str, folder: Path) -> Revision:
    """Return the last commit that two revisions have in common.

    Raises:
      InputsError: one of them is no revision, or they have nothing in common.
    """
    ours, theirs = revision(one, folder), revision(other, folder)
    done = _git(folder, "merge-base", ours.commit, theirs.commit)
    if done.returncode:
        raise InputsError(f"{one} and {other} have no commit in common{_hint(one, folder)}")
    return Revision(f"{one}...{other}", done.stdout.strip(), ours.root)


def repository_of(folder: Path) -> Path | None:
    """Return the top folder of the repository that a folder is in; None where it is in none.

    Raises:
      JaxresidError: git is not installed, or refuses the repository.
    """
    done = _git(folder, "rev-parse", "--show-toplevel")
    if done.returncode == 0:
        return Path(done.stdout.rstrip("\n"))
    if "not a git repository" in done.stderr:
        return None
    raise JaxresidError(f"git refuses {folder}: {_first_line(done.stderr)}")


def check_submodules(folder: Path) -> None:
    """Check that no submodule of a working tree has changes that no commit of it holds.

    A difference from a revision would be theirs without a name.

    Raises:
      InputsError: one has; the message names it.
    """
    done = _git(folder, "status", "--porcelain=v2", "--ignore-submodules=none")
    for line in done.stdout.splitlines():
        # `1 .M S.M. ...`: a submodule (S) with modified (M) or untracked (U) content.
        kind, *fields = line.split(" ")
        if kind in ("1", "2") and fields[1].startswith("S") and set(fields[1][2:]) & {"M", "U"}:
            name = line.split(" ", 8)[-1]
            raise InputsError(
                f"the submodule {name} has uncommitted changes, which no revision holds: commit"
                " or stash them, or compare two revisions"
            )


@contextlib.contextmanager
def checked_out(found: Revision) -> Iterator[Path]:
    """Check a revision out, and yield the top folder of its files; they are gone afterwards.

    Submodules are there where they are in the working tree. No hook runs.

    Raises:
      JaxresidError: git cannot check it out.
    """
    parent = Path(os.path.realpath(tempfile.mkdtemp(prefix="jaxresid-")))
    tree = parent / found.root.name
    with _interrupted_by_termination():
        try:
            _worktree(found.root, tree, found.commit, found.name)
            _add_submodules(found, tree)
            yield tree
        finally:
            with blocking_interrupts():
                _remove(found, tree)
                shutil.rmtree(parent, ignore_errors=True)


def _worktree(repository: Path, tree: Path, commit: str, name: str) -> None:
    done = _git(repository, "worktree", "add", "--quiet", "--detach", "--force", str(tree), commit)
    if done.returncode:
        raise JaxresidError(f"git cannot check out {name}: {_first_line(done.stderr)}")


def _add_submodules(found: Revision, tree: Path) -> None:
    for path, commit in _submodules(found.root, found.commit):
        here = found.root / path
        if not (here / ".git").exists():  # it is not there in the working tree either
            continue
        if _git(here, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
            raise InputsError(
                f"the submodule {path} does not have the commit {commit[:12]} of {found.name}: run"
                f" git -C {path} fetch"
            )
        inner = Revision(found.name, commit, here)
        (tree / path).rmdir()
        _worktree(here, tree / path, commit, f"the submodule {path} of {found.name}")
        _add_submodules(inner, tree / path)


def _submodules(repository: Path, commit: str) -> list[tuple[str, str]]:
    """Return the submodules of a commit: their paths and the commits that it has of them."""
    listed = _git(repository, "ls-tree", "-r", "-z", commit).stdout
    entries = [entry.partition("\t") for entry in listed.split("\0") if entry]
    return [
        (path, fields.split(" ")[2]) for fields, _, path in entries if fields.startswith(_SUBMODULE)
    ]


def _remove(found: Revision, tree: Path) -> None:
    """Remove a checkout, and what repositories know of it; a part of it may not be there."""
    for path, commit in _submodules(found.root, found.commit):
        here = found.root / path
        if (here / ".git").exists() and (tree / path).exists():
            _remove(Revision(found.name, commit, here), tree / path)
    _git(found.root, "worktree", "remove", "--force", "--force", str(tree))
    shutil.rmtree(tree, ignore_errors=True)
    _git(found.root, "worktree", "prune")


@contextlib.contextmanager
def _interrupted_by_termination() -> Iterator[None]:
    """Let a request to end the process interrupt it, so that what it made is removed."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _hint(name: str, folder: Path) -> str:
    shallow = _git(folder, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"
    if shallow:
        return "; the clone is shallow, and git fetch --unshallow brings the rest"
    if _commit(f"origin/{name}", folder) is not None:
        return f"; did you mean origin/{name}?"
    return ""


def _commit(name: str, folder: Path) -> str | None:
    quietly = ("--verify", "--quiet", "--end-of-options")
    done = _git(folder, "rev-parse", *quietly, f"{name}^{{commit}}")
    return None if done.returncode else done.stdout.strip()


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in a folder, without hooks, in English.

    A folder of the tree that looks like a bare repository is none: its configuration is not the
    user's, and could name programs to run.

    Raises:
      JaxresidError: git is not installed.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}
    settings = (f"core.hooksPath={os.devnull}", "safe.bareRepository=explicit")
    options = [word for setting in settings for word in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *options, *arguments],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            env={**environment, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise JaxresidError("git is not installed, and revisions need it") from None


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else "it says nothing"
