"""The commands of a client: name the targets, trace one, plan for it, apply the plan, stop."""

from __future__ import annotations

import asyncio
import functools
import itertools
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lsprotocol import converters, types

from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.base.text.safe_text import one_line
from jaxresid.server.answers import without_versions
from jaxresid.server.commands.applying import workspace_edit
from jaxresid.server.commands.options import ServerOptions
from jaxresid.server.commands.projects import ProjectTarget, all_targets, project_target, python_of
from jaxresid.server.commands.running import run
from jaxresid.server.documents import OpenFiles
from jaxresid.server.places import path_of
from jaxresid.server.traced.target_lenses import APPLY_PLAN, PLAN, TRACE
from jaxresid.server.traced.traces import Traces

CANCEL = "jaxresid.cancel"
TARGETS = "jaxresid.targets"


class _Work(NamedTuple):
    """What a command is to run: the words of a command line, for a target, by a Python."""

    target: ProjectTarget
    python: str
    words: tuple[str, ...]
    title: str


class Commands:
    """Does what commands say. What cannot be done is one line that the client shows.

    Args:
      server: pygls' server.
      files: the open documents.
      folders: returns the folders of the workspace.
      traces: the last results.
    """

    def __init__(
        self,
        server: Any,
        files: OpenFiles,
        folders: Callable[[], Sequence[Path]],
        traces: Traces,
    ) -> None:
        self.options = ServerOptions()
        self._server = server
        self._files = files
        self._folders = folders
        self._traces = traces
        self._convert = converters.get_converter()
        self._tokens = itertools.count(1)
        self._can = {"progress": False, "apply": False, "versions": False}
        self._encoding = "utf-16"
        self._running: tuple[str, asyncio.Task[bool]] | None = None
        self._token: Any = None

    def start(self, options: ServerOptions, can: dict[str, bool], encoding: str) -> None:
        """Take the options and abilities of the client, and what positions count."""
        self.options = options
        self._can |= can
        self._encoding = encoding

    def handlers(self) -> dict[str, Any]:
        """Return what to call for which command.

        Each takes the client's token for its progress, or None, and its arguments. It returns
        whether it is done or under way, but for the one that returns the targets.
        """
        named: dict[str, Callable[..., Any]] = {
            TRACE: self._trace,
            PLAN: self._plan,
            APPLY_PLAN: self._apply,
            CANCEL: self._cancel,
        }
        # pygls writes on what it is given, and methods cannot be written on.
        targets = functools.partial(self._targets)
        return {name: self._answering(do) for name, do in named.items()} | {TARGETS: targets}

    def _answering(self, do: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(token: Any, *given: Any) -> bool:
            try:
                if not self.options.trusted:
                    raise InputsError("commands are off, as the workspace is not trusted")
                work = await do(*_arguments(given))
            except JaxresidError as e:
                self._tell(f"jaxresid: {e}", types.MessageType.Error)
                return False
            return True if work is None else await self._start(work, token)

        return answer

    def _targets(self, *_: Any) -> list[dict[str, str]]:
        """Return the targets of the workspace: of each its `name` and its project's `folder`."""
        found = all_targets(self._folders(), self._near(), self._traces.targets)
        return [{"name": name, "folder": str(folder)} for name, folder in found]

    def _near(self) -> list[Path]:
        return [f.path for f in map(self._files.file, self._files) if f is not None]

    # -- what runs ---------------------------------------------------------------------------

    async def _trace(self, name: str | None, folder: str | None = None, *more: Any) -> _Work:
        _none_more(TRACE, "the name of a target and the folder of its project", more)
        target = self._target(name, folder)
        return await self._work(target, "report", f"tracing {target.name}", ())

    async def _plan(
        self,
        name: str | None,
        budget: str | None = None,
        place: str | None = None,
        folder: str | None = None,
        *more: Any,
    ) -> _Work:
        what = "the name of a target, a budget, a place and the folder of its project"
        _none_more(PLAN, what, more)
        target = self._target(name, folder)
        options = [
            *([f"--budget={budget}"] if budget else ()),
            *([f"--on={place}"] if place else ()),
        ]
        return await self._work(target, "plan", f"planning {target.name}", options)

    async def _cancel(self, *more: Any) -> None:
        if self._running is not None:
            self._running[1].cancel()

    async def stop(self) -> None:
        """Stop what runs, and wait until nothing of it is left."""
        if self._running is not None:
            self._running[1].cancel()
            await asyncio.wait([self._running[1]])

    def cancel_token(self, token: Any) -> None:
        """Stop what runs if its progress is the one that the client no longer wants."""
        if self._running is not None and token == self._token:
            self._running[1].cancel()

    async def _work(
        self, target: ProjectTarget, command: str, title: str, options: Sequence[str]
    ) -> _Work:
        self._check_idle()
        python = await asyncio.to_thread(python_of, target, self.options.interpreter)
        self._check_idle()
        return _Work(target, python, (command, target.name, *options), title)

    async def _start(self, work: _Work, token: Any) -> bool:
        """Start a command, and return whether it is under way.

        With the client's token, which is worth something until the answer, return when it has
        ended: whether it is done.
        """
        task = asyncio.ensure_future(self._run(work, token))
        self._running = work.title, task
        return True if token is None else await task

    def _check_idle(self) -> None:
        if self._running is not None and not self._running[1].done():
            raise InputsError(f"one thing at a time: {self._running[0]} is under way")

    async def _run(self, work: _Work, token: Any) -> bool:
        target, title = work.target, work.title
        token = await self._begin_progress(title, token)
        said, kind, is_done = "", types.MessageType.Info, False
        try:
            await run(work.python, target.folder, work.words, functools.partial(self._say, token))
            await self._traces.look()
            said = self._traces.summary(str(target.folder), target.name, work.words[0])
            is_done = True
        except asyncio.CancelledError:
            said = f"{title}: stopped"
        except JaxresidError as e:
            said, kind = f"{title}: {e}", types.MessageType.Error
        except Exception as e:
            traceback.print_exception(e)
            said = f"{title}: internal error: {type(e).__name__}: {e}"
            kind = types.MessageType.Error
        self._end_progress(token)
        self._tell(f"jaxresid: {said}", kind)
        return is_done

    async def _begin_progress(self, title: str, token: Any) -> Any:
        """Begin the progress that the client has a token for, else one of the server's."""
        if token is None:
            if not self._can["progress"]:
                return None
            token = f"jaxresid/{next(self._tokens)}"
            try:
                await self._server.work_done_progress.create_async(token)
            except Exception:  # the client has none for it
                return None
        self._token = token
        begin = types.WorkDoneProgressBegin(title=f"jaxresid: {title}", cancellable=True)
        self._server.work_done_progress.begin(token, begin)
        return token

    def _say(self, token: Any, text: str) -> None:
        if token is not None:
            report = types.WorkDoneProgressReport(message=text, cancellable=True)
            self._server.work_done_progress.report(token, report)

    def _end_progress(self, token: Any) -> None:
        if token is not None:
            self._server.work_done_progress.end(token, types.WorkDoneProgressEnd())

    # -- what is applied ---------------------------------------------------------------------

    async def _apply(self, name: str | None, folder: str | None = None, *more: Any) -> None:
        _none_more(APPLY_PLAN, "the name of a target and the folder of its project", more)
        target = self._target(name, folder)
        if not self._can["apply"]:
            raise InputsError(
                "this editor applies no edits of a server; on the command line, plan --write does"
            )
        await self._traces.look()
        plan = self._traces.plan(str(target.folder), target.name)
        if plan is None:
            raise InputsError(f"there is no plan of {target.name} yet: plan first")
        edit = workspace_edit(
            plan, self._folders(), self._traces.document_at, self._traces.digest, self._encoding
        )
        if not self._can["versions"]:
            edit = without_versions(edit)
        given = {"label": f"Plan of {target.name}", "edit": edit}
        params = self._convert.structure(given, types.ApplyWorkspaceEditParams)
        answer = await self._server.workspace_apply_edit_async(params)
        if not answer.applied:
            why = answer.failure_reason or "the editor gives no reason"
            raise InputsError(f"the plan of {target.name} was not applied: {why}")

    # -- what they share ---------------------------------------------------------------------

    def _target(self, name: str | None, folder: str | None) -> ProjectTarget:
        if not name:
            raise InputsError("name a target of pyproject.toml, as in jaxresid.trace train")
        path = None
        if folder is not None:
            path = path_of(folder) if ":" in folder else Path(folder)
            if path is None or not path.is_absolute():
                raise InputsError(f"{folder} is no absolute folder of this machine")
        return project_target(name, path, self._folders(), self._near(), self._traces.targets)

    def _tell(self, text: str, kind: types.MessageType) -> None:
        shown = types.ShowMessageParams(type=kind, message=one_line(text))
        self._server.window_show_message(shown)


def _arguments(given: Sequence[Any]) -> list[str | None]:
    """Return the arguments of a command, at least one.

    Raises:
      InputsError: One is no text.
    """
    for each in given:
        if each is not None and not isinstance(each, str):
            raise InputsError(f"{each!r} is no argument of a command: write text")
    return list(given) or [None]


def _none_more(command: str, wanted: str, more: Sequence[Any]) -> None:
    if more:
        raise InputsError(f"{command} takes {wanted}, and nothing more: {more[0]!r}")
