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
    """

    label: str
    target: str
    arguments: tuple[str, ...] = ()
    revision: str | None = None
    python: str | None = None
    flags: tuple[str, ...] = ()


def reports_of(
    requests: Sequence[ReportRequest], progress: Callable[[str], None] | None = None
) -> tuple[Report, ...]:
    """Return reports as `outcomes_of` does; the first that cannot be made is raised."""
    reports = []
    for outcome in outcomes_of(requests, progress):
        if isinstance(outcome, JaxresidError):
            raise outcome
        reports.append(outcome)
    return tuple(reports)


def outcomes_of(
    requests: Sequence[ReportRequest], progress: Callable[[str], None] | None = None
) -> tuple[Report | JaxresidError, ...]:
    """Return for each request its report, or the error of one that cannot be made.

    They are made at the same time as far as there are processors. Each revision is checked out
    once, and all that was made for it is removed again, whatever happens.

    Raises:
      InputsError: a revision, an interpreter or a flag is none.
    """
    here = Path(os.path.realpath(os.getcwd()))
    names = dict.fromkeys(it.revision for it in requests if it.revision is not None)
    revisions = {name: revision(name, here) for name in names}
    if revisions and any(request.revision is None for request in requests):
        check_submodules(here)
    # What is wrong with an interpreter or a flag is said before anything is checked out.
    programs = [
        (interpreter(it.python) if it.python else sys.executable, _environment(it))
        for it in requests
    ]
    with contextlib.ExitStack() as stack:
        trees: dict[str, Path] = {}
        for at in revisions.values():
            if at.commit not in trees:
                if progress is not None:
                    progress(f"checking out {at.name}")
                trees[at.commit] = stack.enter_context(checked_out(at))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxresid-")))
        if progress is not None:
            progress(f"tracing {', '.join(dict.fromkeys(request.label for request in requests))}")
        jobs = [
            _Job(request, *program, *_tree(request, revisions, trees, here), folder / f"{i}.json")
            for i, (request, program) in enumerate(zip(requests, programs, strict=True))
        ]
        return _outcomes(jobs)


@dataclass(frozen=True, slots=True)
class _Job:
    """A report to be made in a folder, which is in the checkout `tree`, if in any.

    It is written to `result`, and what is printed to a log beside it.
    """

    request: ReportRequest
    python: str
    environment: dict[str, str]
    folder: Path
    tree: Path | None
    result: Path

    @property
    def log(self) -> Path:
        return self.result.with_suffix(".log")

    def start(self) -> subprocess.Popen[bytes]:
        target, arguments = _resolved(self.request, self.folder)
        instructions = {
            "package": FOLDER.rstrip(os.sep),
            "lent": dict(lent_packages()),
            "first": [str(path) for path in _first(self.folder, self.tree)],
            "hidden": None if self.tree is None else str(repository_of(Path.cwd())),
            "flags": [flag.partition("=")[0] for flag in self.request.flags],
            "attended": False,
            "arguments": ["report", target, *arguments, "-f", "json", "-o", str(self.result)],
        }
        with self.log.open("wb") as file:
            return subprocess.Popen(
                [self.python, "-P", str(child.__file__), json.dumps(instructions)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def outcome(self, code: int) -> Report | JaxresidError:
        if code == 0:
            return load(self.result, Report)
        output = self.log.read_text(encoding="utf-8", errors="replace")
        return JaxresidError(f"{self.request.label}: {reason_of(output, code)}")


def _outcomes(jobs: Sequence[_Job]) -> tuple[Report | JaxresidError, ...]:
    """Run jobs in processes, as many at once as there are processors."""
    outcomes: dict[int, Report | JaxresidError] = {}
    waiting = list(enumerate(jobs))
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                i, job = waiting.pop(0)
                running[i] = job.start()
            for i, process in list(running.items()):
                if (code := process.poll()) is not None:
                    del running[i]
                    outcomes[i] = jobs[i].outcome(code)
            time.sleep(_POLL_S)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return tuple(outcomes[i] for i in range(len(jobs)))


def _resolved(request: ReportRequest, folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the target and the arguments of a request in the folder that it is made in.

    A target that the configuration names there is taken from there; one that only the configuration
    here names is written out.
    """
    if request.revision is None or ":" in request.target:
        return request.target, request.arguments
    if any(target.name == request.target for target in project(folder).targets):
        return request.target, request.arguments
    here = project(Path())
    named = next((target for target in here.targets if target.name == request.target), None)
    if named is None or here.file is None:
        return request.target, request.arguments
    home = Path(os.path.abspath(here.file)).parent
    arguments = []
    for option, written in named.options.items():
        for value in written if isinstance(written, tuple) else (written,):
            if isinstance(value, bool):
                arguments += [option] * value
            else:
                text = (
                    references.reference_from(home, value)
                    if option in references.OPTIONS
                    else value
                )
                arguments.append(f"{option}={text}")
    return references.reference_from(home, named.target), (*arguments, *request.arguments)


def _tree(
    request: ReportRequest,
    revisions: dict[str, Revision],
    trees: dict[str, Path],
    here: Path,
) -> tuple[Path, Path | None]:
    """Return the folder that a report is made in, and the top folder of its checkout, if any."""
    if request.revision is None:
        return here, None
    at = revisions[request.revision]
    tree = trees[at.commit]
    below = here.relative_to(os.path.realpath(at.root))
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
    folders = [folder, tree, tree / "src", *(tree / path for path in below)]
    return [path for path in dict.fromkeys(folders) if path.is_dir()]


def _environment(request: ReportRequest) -> dict[str, str]:
    """Return the environment of a request, with its flags."""
    environment = dict(os.environ)
    for flag in request.flags:
        name, equals, value = flag.partition("=")
        if not equals or not name.isidentifier() or not name.startswith("jax_"):
            raise InputsError(f"--flag {flag} is not jax_NAME=VALUE; write jax_remat3=1")
        environment[name.upper()] = value
    return environment


def reason_of(output: str, code: int) -> str:
    """Return why a process made no result, from what it printed on stderr and its exit code."""
    for mark, is_whole in ((_ERROR, True), (_UNFORESEEN, False), (_USAGE, True)):
        _, is_there, message = output.rpartition(mark)
        if is_there and (mark != _USAGE or code == _USAGE_CODE):
            return message.strip() if is_whole else message.splitlines()[0]
    lines = output.strip().splitlines()
    last = lines[-1] if lines else "it printed nothing"
    return f"the process that traces it ended with {code}: {last}"
