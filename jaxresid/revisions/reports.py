"""Make reports in processes of their own: of revisions, by interpreters, under flags."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.base.home import FOLDER
from jaxresid.results import Report
from jaxresid.revisions import child
from jaxresid.revisions.git import Revision, check_submodules, checked_out, repository_of, revision
from jaxresid.revisions.interpreters import interpreter, lent_packages
from jaxresid.serialization.files import load
from jaxresid.settings.project import project
from jaxresid.targets import references

_POLL_S = 0.02
_ERROR = "jaxresid: error: "
_UNFORESEEN = "jaxresid: internal error: "
_USAGE, _USAGE_CODE = "\nError: ", 2  # of click


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """A report that is to be made.

    Attributes:
      label: what an error calls it: `main`.
      target: `module:function`, `file.py:function` or a name of the tree's configuration.
      arguments: further arguments of `jaxresid report`: inputs, place, mesh.
      revision: the revision whose files are traced; None: the files that are here.
      python: the interpreter that traces; None: this one.
      flags: flags of JAX and their values, `jax_remat3=1`.
    """

    label: str
    target: str
    arguments: tuple[str, ...] = ()
    revision: str | None = None
    python: str | None = None
    flags: tuple[str, ...] = ()


def report_at(name: str, target: str, arguments: Sequence[str] = ()) -> Report:
    """Return the report of a target as it was at a revision of git.

    Args:
      name: the revision: `main`, `HEAD~1`.
      target: `module:function`, `file.py:function` or the name of a target that the configuration
        of that revision has.
      arguments: further arguments of `jaxresid report`: `("--on", "tpu:v5e")`.

    Raises:
      JaxresidError: there is no such revision, or no report of the target there.
    """
    (found,) = reports_of([ReportRequest(name, target, tuple(arguments), name)])
    return found


def reports_of(
    requests: Sequence[ReportRequest], progress: Callable[[str], None] | None = None
) -> tuple[Report, ...]:
    """Return reports, made at the same time as far as there are processors.

    Each revision is checked out once, and all that was made for it is removed again, whatever
    happens.

    Args:
      requests: what is to be made.
      progress: called with a text that says what is being done.

    Raises:
      InputsError: a revision, an interpreter or a flag is none.
      JaxresidError: one of them cannot be made; the message begins with its label.
    """
    found = []
    for each in outcomes_of(requests, progress):
        if isinstance(each, JaxresidError):
            raise each
        found.append(each)
    return tuple(found)


def outcomes_of(
    requests: Sequence[ReportRequest], progress: Callable[[str], None] | None = None
) -> tuple[Report | JaxresidError, ...]:
    """Return for each request its report, or the error of one that cannot be made.

    Args:
      requests: what is to be made.
      progress: called with a text that says what is being done.

    Raises:
      InputsError: a revision, an interpreter or a flag is none.
    """
    here = Path(os.path.realpath(os.getcwd()))
    named = {each.revision: each.revision for each in requests if each.revision is not None}
    revisions = {name: revision(name, here) for name in named}
    if revisions and any(each.revision is None for each in requests):
        check_submodules(here)
    jobs = [_Job(each, _python(each), _environment(each)) for each in requests]
    with contextlib.ExitStack() as stack:
        trees: dict[str, Path] = {}
        for found in revisions.values():
            if found.commit not in trees:
                if progress is not None:
                    progress(f"checking out {found.name}")
                trees[found.commit] = stack.enter_context(checked_out(found))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxresid-")))
        if progress is not None:
            progress(f"tracing {', '.join(dict.fromkeys(each.label for each in requests))}")
        return _made(
            [
                (job, *_tree(job.request, revisions, trees, here), folder / f"{i}.json")
                for i, job in enumerate(jobs)
            ]
        )


@dataclass(frozen=True, slots=True)
class _Job:
    request: ReportRequest
    python: str
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Running:
    """A process that makes a report.

    Attributes:
      job: what it makes.
      process: the process.
      result: the file that it writes.
      log: the file that has what it printed.
    """

    job: _Job
    process: subprocess.Popen[bytes]
    result: Path
    log: Path

    def outcome(self) -> Report | JaxresidError:
        """Return the report of a process that ended, or why it made none."""
        if self.process.returncode == 0:
            return load(self.result, Report)
        said = self.log.read_text(encoding="utf-8", errors="replace")
        reason = reason_of(said, self.process.returncode)
        return JaxresidError(f"{self.job.request.label}: {reason}")


def _made(
    jobs: Sequence[tuple[_Job, Path, Path | None, Path]],
) -> tuple[Report | JaxresidError, ...]:
    """Return what becomes of jobs, each with its folder, the repository and the file it writes."""
    found: list[Report | JaxresidError | None] = [None] * len(jobs)
    waiting = list(enumerate(jobs))
    running: dict[int, _Running] = {}
    most = max(os.cpu_count() or 1, 1)
    try:
        while waiting or running:
            while waiting and len(running) < most:
                i, job = waiting.pop(0)
                running[i] = _started(*job)
            for i, each in list(running.items()):
                if each.process.poll() is not None:
                    del running[i]
                    found[i] = each.outcome()
            time.sleep(_POLL_S)
    finally:
        for each in running.values():
            each.process.kill()
            each.process.wait()
    return tuple(each for each in found if each is not None)


def _started(job: _Job, folder: Path, tree: Path | None, result: Path) -> _Running:
    request = job.request
    target, arguments = _resolved(request, folder)
    given = {
        "package": FOLDER.rstrip(os.sep),
        "lent": dict(lent_packages()),
        "first": [str(path) for path in _first(folder, tree)],
        "hidden": None if tree is None else str(repository_of(Path.cwd())),
        "flags": [flag.partition("=")[0] for flag in request.flags],
        "attended": False,
        "arguments": [
            *("report", target, *arguments),
            *("-f", "json", "-o", str(result)),
        ],
    }
    log = result.with_suffix(".log")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [job.python, "-P", str(child.__file__), json.dumps(given)],
            cwd=folder,
            env=job.environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    return _Running(job, process, result, log)


def _resolved(request: ReportRequest, folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the target and the arguments of a request in the folder that it is made in.

    A target that the configuration names there is taken from there; one that only the configuration
    here names is written out.
    """
    if request.revision is None or ":" in request.target:
        return request.target, request.arguments
    if any(each.name == request.target for each in project(folder).targets):
        return request.target, request.arguments
    here = project(Path())
    named = next((each for each in here.targets if each.name == request.target), None)
    if named is None or here.file is None:
        return request.target, request.arguments
    home = Path(os.path.abspath(here.file)).parent
    arguments = []
    for option, value in named.options.items():
        values = value if isinstance(value, tuple) else (value,)
        for each in values:
            if isinstance(each, bool):
                arguments += [option] * each
            else:
                text = _from_here(each, home) if option in references.OPTIONS else each
                arguments.append(f"{option}={text}")
    return _from_here(named.target, home), (*arguments, *request.arguments)


def _from_here(reference: str, home: Path) -> str:
    """Return `file.py:function` of a configuration with its file as seen from here."""
    return references.with_file(
        reference,
        lambda file: file if os.path.isabs(file) else os.path.relpath(home / file),
    )


def _tree(
    request: ReportRequest,
    revisions: dict[str, Revision],
    trees: dict[str, Path],
    here: Path,
) -> tuple[Path, Path | None]:
    """Return the folder that a report is made in, and the top folder of its checkout, if any.

    Raises:
      InputsError: the revision does not have the folder that we are in.
    """
    if request.revision is None:
        return here, None
    found = revisions[request.revision]
    tree = trees[found.commit]
    below = here.relative_to(os.path.realpath(found.root))
    if not (tree / below).is_dir():
        raise InputsError(f"{request.label}: there is no folder {below} at that revision")
    return tree / below, tree


def _first(folder: Path, tree: Path | None) -> list[Path]:
    """Return the folders of a tree whose modules come first: those that are importable here."""
    root = repository_of(Path.cwd())
    if tree is None or root is None:
        return [folder]
    top = os.path.realpath(root)
    ours = [os.path.realpath(path or os.getcwd()) for path in sys.path]
    below = [os.path.relpath(path, top) for path in ours if path.startswith(top + os.sep)]
    found = [folder, tree, tree / "src", *(tree / path for path in below)]
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def _python(request: ReportRequest) -> str:
    return sys.executable if request.python is None else interpreter(request.python)


def _environment(request: ReportRequest) -> dict[str, str]:
    """Return the environment of a request, with its flags.

    Raises:
      InputsError: a flag is not NAME=VALUE.
    """
    found = dict(os.environ)
    for flag in request.flags:
        name, equals, value = flag.partition("=")
        if not equals or not name.isidentifier() or not name.startswith("jax_"):
            raise InputsError(f"--flag {flag} is not jax_NAME=VALUE; write jax_remat3=1")
        found[name.upper()] = value
    return found


def reason_of(said: str, code: int) -> str:
    """Return why a process made no result, from what it printed.

    Args:
      said: what it printed on stderr.
      code: its exit code.
    """
    _, found, message = said.rpartition(_ERROR)
    if found:
        return message.strip()
    _, found, message = said.rpartition(_UNFORESEEN)
    if found:
        return message.splitlines()[0]
    _, found, message = said.rpartition(_USAGE)
    if found and code == _USAGE_CODE:
        return message.strip()
    lines = said.strip().splitlines()
    last = lines[-1] if lines else "it printed nothing"
    return f"the process that traces it ended with {code}: {last}"
