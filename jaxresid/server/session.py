"""What the server does for each message of the client."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lsprotocol import converters, types

from jaxresid.server.answers import (
    FIX_ALL,
    KINDS,
    Findings,
    is_asked_for,
    without_versions,
)
from jaxresid.server.buffers import Buffer, Change, Position
from jaxresid.server.commands.commands import Commands
from jaxresid.server.commands.options import server_options
from jaxresid.server.documents import Cell, NotebookFile, OpenFiles, TextFile
from jaxresid.server.linting import Linting
from jaxresid.server.places import path_of
from jaxresid.server.traced.traces import Traces

# What decides what is found, besides what is open: sources, and all that the settings come from.
_WATCHED = ("**/*.{py,pyi,ipynb}", "**/*.{toml,lock,txt,cfg,ini,yml,yaml}", "**/.gitignore")


class Session:
    """One connection to a client."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._convert = converters.get_converter()
        self._files = OpenFiles()
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._folders: dict[str, Path] = {}
        self._can: dict[str, bool] = {}
        self._shown: dict[str, set[str]] = {}
        self._traces = Traces(self._files, self._workspace, self._traces_changed)
        self._commands = Commands(server, self._files, self._workspace, self._traces)

    def commands(self) -> dict[str, Any]:
        """Return what to call for which command."""
        return self._commands.handlers()

    def _workspace(self) -> tuple[Path, ...]:
        return tuple(self._folders.values())

    def handlers(self) -> dict[str, Any]:
        """Return what to call for which message."""
        named = {
            types.INITIALIZE: self._initialize,
            types.INITIALIZED: self._initialized,
            types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: self._did_change_folders,
            types.WORKSPACE_DID_CHANGE_WATCHED_FILES: self._did_change_files,
            types.WORKSPACE_DID_CHANGE_CONFIGURATION: self._did_change_configuration,
            types.WINDOW_WORK_DONE_PROGRESS_CANCEL: self._cancel_progress,
            types.SHUTDOWN: self._shutdown,
            types.TEXT_DOCUMENT_DID_OPEN: self._did_open,
            types.TEXT_DOCUMENT_DID_CHANGE: self._did_change,
            types.TEXT_DOCUMENT_DID_SAVE: self._did_change_files,
            types.TEXT_DOCUMENT_DID_CLOSE: self._did_close,
            types.NOTEBOOK_DOCUMENT_DID_OPEN: self._did_open_notebook,
            types.NOTEBOOK_DOCUMENT_DID_CHANGE: self._did_change_notebook,
            types.NOTEBOOK_DOCUMENT_DID_SAVE: self._did_change_files,
            types.NOTEBOOK_DOCUMENT_DID_CLOSE: self._did_close_notebook,
            types.TEXT_DOCUMENT_DIAGNOSTIC: self._diagnostic,
            types.TEXT_DOCUMENT_CODE_ACTION: self._code_action,
            types.TEXT_DOCUMENT_HOVER: self._hover,
            types.TEXT_DOCUMENT_INLAY_HINT: self._inlay_hint,
            types.TEXT_DOCUMENT_CODE_LENS: self._code_lens,
        }
        # pygls writes on what it is given, and methods cannot be written on.
        return {name: functools.partial(handler) for name, handler in named.items()}

    # -- the life of the connection ----------------------------------------------------------

    def _initialize(self, params: Any) -> None:
        asked = self._convert.unstructure(params.capabilities)
        workspace, text = asked.get("workspace", {}), asked.get("textDocument", {})
        self._can = {
            "pull": "diagnostic" in text,
            "refresh": _flag(workspace, "diagnostics", "refreshSupport"),
            "hints": _flag(workspace, "inlayHint", "refreshSupport"),
            "lenses": _flag(workspace, "codeLens", "refreshSupport"),
            "watch": _flag(workspace, "didChangeWatchedFiles", "dynamicRegistration"),
            "versions": _flag(workspace, "workspaceEdit", "documentChanges"),
            "markdown": "markdown" in text.get("hover", {}).get("contentFormat", ()),
        }
        folders = [folder.uri for folder in params.workspace_folders or ()]
        root = params.root_uri or (params.root_path and Path(params.root_path).as_uri())
        self._folders = _paths(folders or [root] if root or folders else [])
        encoding = str(getattr(self._encoding(), "value", self._encoding()))
        self._linting = Linting(self._files, encoding, self._executor, self._publish, self._tell)
        self._units = encoding
        self._linting.use(self._workspace())
        can = {
            "progress": _flag(asked, "window", "workDoneProgress"),
            "apply": _flag(workspace, "applyEdit"),
            "versions": self._can["versions"],
        }
        self._commands.start(server_options(params.initialization_options), can, encoding)

    def _encoding(self) -> Any:
        return self._server.workspace.position_encoding or "utf-16"

    def _initialized(self, params: Any) -> None:
        if self._can["watch"]:
            watchers = [types.FileSystemWatcher(glob_pattern=glob) for glob in _WATCHED]
            options = types.DidChangeWatchedFilesRegistrationOptions(watchers=watchers)
            name = types.WORKSPACE_DID_CHANGE_WATCHED_FILES
            registration = types.Registration(id=name, method=name, register_options=options)
            self._server.client_register_capability(types.RegistrationParams([registration]))
        self._traces.start()

    def _did_change_folders(self, params: Any) -> None:
        for folder in params.event.removed:
            self._folders.pop(folder.uri, None)
        self._folders |= _paths(folder.uri for folder in params.event.added)
        self._linting.use(self._workspace())
        self._refresh()
        self._traces_changed(False)

    def _did_change_configuration(self, params: Any) -> None:
        settings = self._convert.unstructure(params.settings)
        self._commands.options = server_options(settings, self._commands.options)
        self._traces_changed(False)

    async def _shutdown(self, params: Any) -> None:
        await self._commands.stop()
        self._linting.close()

    def _cancel_progress(self, params: Any) -> None:
        self._commands.cancel_token(params.token)

    def _did_change_files(self, params: Any) -> None:
        self._linting.look_again()
        self._refresh()
        self._traces.edited()

    def _refresh(self) -> None:
        if self._can["pull"] and self._can["refresh"]:
            self._server.workspace_diagnostic_refresh(None)

    def _traces_changed(self, has_new: bool) -> None:
        if has_new:
            self._linting.changed()
            self._refresh()
        if self._can["hints"]:
            self._server.workspace_inlay_hint_refresh(None)
        if self._can["lenses"]:
            self._server.workspace_code_lens_refresh(None)

    def _tell(self, text: str) -> None:
        kind = types.MessageType.Error
        self._server.window_show_message(types.ShowMessageParams(type=kind, message=text))

    # -- documents ---------------------------------------------------------------------------

    def _did_open(self, params: Any) -> None:
        it = params.text_document
        buffer = Buffer(it.text, it.version)
        self._files.put(TextFile(it.uri, _path_or_none_there(it.uri), it.language_id, buffer))
        self._linting.changed(it.uri)

    def _did_change(self, params: Any) -> None:
        self._change(params.text_document, params.content_changes)

    def _change(self, which: Any, changes: Iterable[Any]) -> None:
        file = self._files.file(which.uri)
        if file is not None and file.document.part(which.uri) is not None:
            now = file.changed(which.uri, map(_change, changes), which.version, self._units)
            self._files.put(now)
            self._linting.changed(file.uri)
            self._traces.edited()

    def _did_close(self, params: Any) -> None:
        self._close(params.text_document.uri)

    def _did_close_notebook(self, params: Any) -> None:
        self._close(params.notebook_document.uri)

    def _close(self, uri: str) -> None:
        if self._files.remove(uri) is not None:
            for shown in self._shown.pop(uri, set()):
                self._send(shown, None, [])
            self._linting.look_again()  # from now on it is what the disk has
            self._traces.edited()

    def _did_open_notebook(self, params: Any) -> None:
        it = params.notebook_document
        buffers = _buffers(params.cell_text_documents)
        languages = {text.uri: text.language_id for text in params.cell_text_documents}
        cells = tuple(_cell(cell, languages) for cell in it.cells)
        path, metadata = _path_or_none_there(it.uri), it.metadata or {}
        if not isinstance(metadata, dict):
            metadata = {}
        if path.suffix != ".ipynb":
            path = path.with_name(f"{path.name}.ipynb")
        self._files.put(NotebookFile(it.uri, path, metadata, cells, buffers))
        self._linting.changed(it.uri)

    def _did_change_notebook(self, params: Any) -> None:
        uri = params.notebook_document.uri
        file = self._files.file(uri)
        if not isinstance(file, NotebookFile):
            return
        changed_cells = params.change.cells
        structure = changed_cells.structure if changed_cells is not None else None
        if structure is not None:
            opened = structure.did_open or []
            languages = {text.uri: text.language_id for text in opened}
            languages |= {cell.uri: cell.language for cell in file.cells}
            array = structure.array
            cells = [_cell(cell, languages) for cell in array.cells or ()]
            self._files.put(
                file.rearranged(array.start, array.delete_count, cells, _buffers(opened))
            )
        for text in (changed_cells.text_content if changed_cells is not None else None) or ():
            self._change(text.document, text.changes)
        self._linting.changed(uri)

    # -- answers -----------------------------------------------------------------------------

    def _publish(self, findings: Findings) -> None:
        if self._can["pull"]:
            return
        findings = self._traces.added_to(findings)
        document = findings.document
        now = {part.uri for part in document.parts.values()}
        for gone in self._shown.get(document.uri, set()) - now:
            self._send(gone, None, [])
        self._shown[document.uri] = now
        for cell, part in document.parts.items():
            self._send(part.uri, part.buffer.version, findings.diagnostics(cell))

    def _send(self, uri: str, version: int | None, diagnostics: list[Any]) -> None:
        message = {"uri": uri, "version": version, "diagnostics": diagnostics}
        params = self._convert.structure(message, types.PublishDiagnosticsParams)
        self._server.text_document_publish_diagnostics(params)

    async def _diagnostic(self, params: Any) -> Any:
        findings_of_text = await self._at(params.text_document.uri)
        if findings_of_text is None:
            return {"kind": "full", "items": []}
        findings, cell = findings_of_text
        return {"kind": "full", "items": findings.diagnostics(cell)}

    async def _at(self, uri: str) -> tuple[Findings, int | None] | None:
        findings = await self._linting.findings(uri)
        part = findings.document.part(uri) if findings is not None else None
        if findings is None or part is None:
            return None
        cell, _ = part
        return self._traces.added_to(findings), cell

    async def _code_action(self, params: Any) -> Any:
        uri = params.text_document.uri
        findings_of_text = await self._at(uri)
        if findings_of_text is None:
            return []
        findings, cell = findings_of_text
        only = params.context.only
        actions: Iterator[Any] = iter(())
        if is_asked_for(KINDS[0], only):
            actions = findings.quick_fixes(cell, params.range.start.line, params.range.end.line)
        if is_asked_for(FIX_ALL, only):
            fixed = await self._linting.fixed(uri)
            action = fixed[0].fix_all(fixed[1]) if fixed is not None else None
            actions = itertools.chain(actions, [action] if action is not None else [])
        first, last = params.range.start.line, params.range.end.line
        runs = only is None and self._commands.options.trusted
        commands = self._traces.actions(findings.document, first, last) if runs else []
        return [*(self._versioned(action) for action in actions), *commands]

    def _versioned(self, action: Any) -> Any:
        edit = action["edit"]
        return action if self._can["versions"] else {**action, "edit": without_versions(edit)}

    async def _hover(self, params: Any) -> Any:
        uri, at, markdown = params.text_document.uri, params.position, self._can["markdown"]
        findings_of_text = await self._at(uri)
        if findings_of_text is None:
            return None
        findings, cell = findings_of_text
        page = findings.hover(cell, at.line, at.character, markdown=markdown)
        return await self._traces.hover(uri, at.line, page, markdown=markdown)

    async def _inlay_hint(self, params: Any) -> Any:
        first, last = params.range.start.line, params.range.end.line
        return await self._traces.hints(params.text_document.uri, first, last, self._units)

    async def _code_lens(self, params: Any) -> Any:
        runs = self._commands.options.trusted
        return await self._traces.lenses(params.text_document.uri, runs=runs)


def _flag(capabilities: Any, *keys: str) -> bool:
    for key in keys:
        capabilities = capabilities.get(key) if isinstance(capabilities, dict) else None
    return capabilities is True


def _paths(uris: Iterable[Any]) -> dict[str, Path]:
    paths = {uri: path_of(uri) for uri in uris}
    return {uri: path for uri, path in paths.items() if path is not None}


def _path_or_none_there(uri: str) -> Path:
    """Return the path of a document; for what is no file of this machine one that is not there."""
    return path_of(uri) or Path("/") / f"{quote(uri, safe='')}.py"


def _change(change: Any) -> Change:
    span = getattr(change, "range", None)
    if span is None:
        return Change(None, None, change.text)
    start, end = (Position(p.line, p.character) for p in (span.start, span.end))
    return Change(start, end, change.text)


def _buffers(texts: Iterable[Any]) -> dict[str, Buffer]:
    return {text.uri: Buffer(text.text, text.version) for text in texts}


def _cell(cell: Any, languages: dict[str, str]) -> Cell:
    is_code = cell.kind == types.NotebookCellKind.Code
    return Cell(cell.document, is_code, languages.get(cell.document, "python"))
