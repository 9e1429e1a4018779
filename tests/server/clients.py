"""A client of the language server: pygls', which starts it and speaks to it over pipes."""

import asyncio
import contextlib
import os
import sys

import attrs
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from tests.where import ROOT

TIMEOUT_S = 30


class Client(LanguageClient):
    """Keeps what the server says."""

    def __init__(self):
        super().__init__("test", "1")
        # lsprotocol reads no selector of notebooks without their type, which ruff sends.
        kind = attrs.fields(types.NotebookDocumentFilterWithCells).notebook.type
        self.protocol._converter.register_structure_hook(kind, lambda value, _: value)
        self.published = []
        self.messages = []
        self.registered = []
        self.refreshed = 0
        self.refreshed_hints = 0
        self.refreshed_lenses = 0
        self.edits = []
        self.progress = []
        self.news = asyncio.Condition()

        @self.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        async def _published(params):
            self.published.append(params)
            await self._wake()

        @self.feature(types.WINDOW_SHOW_MESSAGE)
        async def _told(params):
            self.messages.append(params.message)
            await self._wake()

        @self.feature(types.CLIENT_REGISTER_CAPABILITY)
        async def _registered(params):
            self.registered += params.registrations
            await self._wake()

        @self.feature(types.WORKSPACE_DIAGNOSTIC_REFRESH)
        async def _refreshed(params):
            self.refreshed += 1
            await self._wake()

        @self.feature(types.WORKSPACE_INLAY_HINT_REFRESH)
        async def _refreshed_hints(params):
            self.refreshed_hints += 1
            await self._wake()

        @self.feature(types.WORKSPACE_CODE_LENS_REFRESH)
        async def _refreshed_lenses(params):
            self.refreshed_lenses += 1
            await self._wake()

        @self.feature(types.WINDOW_WORK_DONE_PROGRESS_CREATE)
        async def _created(params):
            pass

        @self.feature(types.PROGRESS)
        async def _progressed(params):
            self.progress.append((params.token, params.value))
            await self._wake()

        @self.feature(types.WORKSPACE_APPLY_EDIT)
        async def _applied(params):
            self.edits.append(params.edit)
            await self._wake()
            return types.ApplyWorkspaceEditResult(applied=True)

    async def _wake(self):
        async with self.news:
            self.news.notify_all()

    async def until(self, true):
        """Wait until something is true, and return it."""
        async with self.news:
            await asyncio.wait_for(self.news.wait_for(true), TIMEOUT_S)
        return true()

    async def found(self, uri, version):
        """The diagnostics of a version of a text, as soon as they are there."""

        def last():
            of = [p for p in self.published if p.uri == uri and p.version == version]
            return of[-1:]

        return (await self.until(last))[0].diagnostics

    async def open(self, uri, text, version=1, language="python"):
        item = types.TextDocumentItem(uri, language, version, text)
        self.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return await self.found(uri, version)

    def change(self, uri, version, *changes):
        which = types.VersionedTextDocumentIdentifier(version, uri)
        self.text_document_did_change(types.DidChangeTextDocumentParams(which, list(changes)))

    def replace(self, uri, version, text):
        self.change(uri, version, types.TextDocumentContentChangeWholeDocument(text))

    async def actions(self, uri, line=0, last=10_000, only=None):
        span = types.Range(types.Position(line, 0), types.Position(last, 0))
        context = types.CodeActionContext([], only=only)
        params = types.CodeActionParams(types.TextDocumentIdentifier(uri), span, context)
        return await asyncio.wait_for(self.text_document_code_action_async(params), TIMEOUT_S)

    async def hover(self, uri, line, character):
        where = types.TextDocumentIdentifier(uri)
        params = types.HoverParams(where, types.Position(line, character))
        return await asyncio.wait_for(self.text_document_hover_async(params), TIMEOUT_S)

    async def hints(self, uri, first=0, last=10_000):
        """The hints, as lines from 1 -> texts; each is behind the end of its line."""
        span = types.Range(types.Position(first, 0), types.Position(last, 0))
        params = types.InlayHintParams(types.TextDocumentIdentifier(uri), span)
        found = await asyncio.wait_for(self.text_document_inlay_hint_async(params), TIMEOUT_S)
        return {hint.position.line + 1: hint.label for hint in found}

    async def lenses(self, uri):
        """The lenses, as pairs of a line from 1 and a command, the topmost first."""
        params = types.CodeLensParams(types.TextDocumentIdentifier(uri))
        found = await asyncio.wait_for(self.text_document_code_lens_async(params), TIMEOUT_S)
        return sorted(((a.range.start.line + 1, a.command) for a in found), key=lambda x: x[0])

    async def execute(self, command, *arguments, token=None):
        params = types.ExecuteCommandParams(command, list(arguments), token)
        return await asyncio.wait_for(self.workspace_execute_command_async(params), TIMEOUT_S)

    async def pull(self, uri):
        params = types.DocumentDiagnosticParams(types.TextDocumentIdentifier(uri))
        return await asyncio.wait_for(self.text_document_diagnostic_async(params), TIMEOUT_S)


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


SERVER = (sys.executable, "-m", "jaxresid", "server")


@contextlib.asynccontextmanager
async def connected(
    *folders, pull=False, encodings=None, versions=True, argv=SERVER, env=ENVIRONMENT, options=None
):
    """A client with a server that knows its folders; it leaves as a client should."""
    client = Client()
    await client.start_io(*argv, env=env)
    capabilities = types.ClientCapabilities(
        general=types.GeneralClientCapabilities(position_encodings=encodings),
        window=types.WindowClientCapabilities(work_done_progress=True),
        workspace=types.WorkspaceClientCapabilities(
            apply_edit=True,
            workspace_edit=types.WorkspaceEditClientCapabilities(document_changes=versions),
            did_change_watched_files=types.DidChangeWatchedFilesClientCapabilities(
                dynamic_registration=True
            ),
            diagnostics=types.DiagnosticWorkspaceClientCapabilities(refresh_support=True),
            inlay_hint=types.InlayHintWorkspaceClientCapabilities(refresh_support=True),
            code_lens=types.CodeLensWorkspaceClientCapabilities(refresh_support=True),
        ),
        text_document=types.TextDocumentClientCapabilities(
            hover=types.HoverClientCapabilities(content_format=[types.MarkupKind.Markdown]),
            diagnostic=types.DiagnosticClientCapabilities() if pull else None,
        ),
        notebook_document=types.NotebookDocumentClientCapabilities(
            types.NotebookDocumentSyncClientCapabilities()
        ),
    )
    known = [types.WorkspaceFolder(folder.as_uri(), folder.name) for folder in folders]
    params = types.InitializeParams(
        capabilities, workspace_folders=known or None, initialization_options=options
    )
    client.answer = await client.initialize_async(params)
    client.initialized(types.InitializedParams())
    try:
        yield client
        await asyncio.wait_for(client.shutdown_async(None), TIMEOUT_S)
        client.exit(None)
        client.code = await asyncio.wait_for(client._server.wait(), TIMEOUT_S)
    finally:
        if client._server.returncode is None:
            client._server.kill()
        await client.stop()
