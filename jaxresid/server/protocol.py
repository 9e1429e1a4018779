"""The protocol as pygls has it, apart from the documents, and strict about order and form.

Nothing here knows what the server is for.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.protocol import LanguageServerProtocol, lsp_method
from pygls.protocol.json_rpc import JsonRPCNotification

_SERVER_NOT_INITIALIZED = -32002
_INVALID_REQUEST = -32600
_INVALID_PARAMS = -32602
# Dropped by whoever gets it, as every notification of an unknown name.
_IGNORED = "$/ignored"


def _handed_on(method: str) -> Any:
    """Return a method that calls what was registered for a notification, and nothing else.

    pygls would keep a copy of each document, whose lines end at form feeds as well.
    """

    @lsp_method(method)
    def handed_on(self: Any, params: Any) -> Iterator[Any]:
        if method in self.fm.features:
            yield self.fm.features[method], (params,), None

    return handed_on


class Protocol(LanguageServerProtocol):
    """The protocol: requests have an answer even where they are malformed or out of order."""

    _was_initialized = False
    has_shut_down = False

    lsp_text_document__did_open = _handed_on(types.TEXT_DOCUMENT_DID_OPEN)
    lsp_text_document__did_change = _handed_on(types.TEXT_DOCUMENT_DID_CHANGE)
    lsp_text_document__did_close = _handed_on(types.TEXT_DOCUMENT_DID_CLOSE)
    lsp_notebook_document__did_open = _handed_on(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    lsp_notebook_document__did_change = _handed_on(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    lsp_notebook_document__did_close = _handed_on(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    lsp_workspace__did_change_workspace_folders = _handed_on(
        types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS
    )

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(self, params: Any) -> Generator[Any, Any, Any]:
        """Say what the server can do, and that clients may have tokens for commands' progress."""
        result = yield from super().lsp_initialize(params)
        result.capabilities.execute_command_provider.work_done_progress = True
        return result

    @lsp_method(types.WORKSPACE_EXECUTE_COMMAND)
    async def lsp_workspace__execute_command(self, params: Any) -> Any:
        """Call what was registered for a command, with the client's token for its progress first.

        pygls would drop the token, make of arguments what the parameters say, and let a command
        go on whose request was cancelled.

        Raises:
          JsonRpcInvalidParams: There is no command of that name.
        """
        handler = self.fm.commands.get(params.command)
        if handler is None:
            raise JsonRpcInvalidParams(f"there is no command {params.command!r}")
        answer = handler(params.work_done_token, *(params.arguments or ()))
        return await answer if inspect.isawaitable(answer) else answer

    def structure_message(self, data: dict[str, Any]) -> Any:
        """Return a message by its JSON; one that is malformed is answered, and ignored."""
        try:
            return super().structure_message(data)
        except Exception:
            method = data.get("method")
            if isinstance(data.get("id"), (str, int)) and isinstance(method, str):
                self._refuse(data["id"], _INVALID_PARAMS, f"malformed parameters of {method}")
            return JsonRPCNotification(_IGNORED, self.VERSION, None)

    def handle_message(self, message: Any) -> None:
        """Handle a message, unless it comes before the first one or after the last."""
        method = getattr(message, "method", None)
        if method is None or method == types.EXIT:
            super().handle_message(message)
            return
        wrong = self._wrong_order(method)
        if wrong is None:
            self._was_initialized |= method == types.INITIALIZE
            self.has_shut_down |= method == types.SHUTDOWN
            super().handle_message(message)
        elif getattr(message, "id", None) is not None:
            self._refuse(message.id, *wrong)

    def _wrong_order(self, method: str) -> tuple[int, str] | None:
        """Return the code and the text of the error of a message that comes out of order."""
        if self.has_shut_down:
            return _INVALID_REQUEST, "the server was shut down"
        if method == types.INITIALIZE and self._was_initialized:
            return _INVALID_REQUEST, "the server was initialized before"
        if method != types.INITIALIZE and not self._was_initialized:
            return _SERVER_NOT_INITIALIZED, "the server is not initialized yet"
        return None

    def _refuse(self, msg_id: str | int, code: int, message: str) -> None:
        self._send_response(msg_id, error=types.ResponseError(code=code, message=message))
