"""Start the server, over standard input and output and nothing else."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import BinaryIO, cast

from jaxresid.base.errors import JaxresidError


def serve() -> int:
    """Serve one client until it leaves.

    Returns:
      0 if the client shut the server down before it left, else 1.

    Raises:
      JaxresidError: The libraries of the extra `server` are not installed.
    """
    try:
        import lsprotocol  # noqa: F401
        import pygls  # noqa: F401
    except ImportError:
        raise JaxresidError(
            "`jaxresid server` needs pygls and lsprotocol: pip install 'jaxresid[server]'"
        ) from None
    from lsprotocol import types
    from pygls.lsp.server import LanguageServer

    from jaxresid._version import __version__
    from jaxresid.base.standard_streams import Output
    from jaxresid.server.answers import KINDS
    from jaxresid.server.protocol import Protocol
    from jaxresid.server.session import Session
    from jaxresid.server.transport import Input

    logging.getLogger("pygls").setLevel(logging.CRITICAL)
    language = types.NotebookCellLanguage(language="python")
    every = types.NotebookDocumentFilterWithNotebook(notebook="*", cells=[language])
    notebooks = types.NotebookDocumentSyncOptions([every], save=True)
    server = LanguageServer(
        "jaxresid", __version__, notebook_document_sync=notebooks, protocol_cls=Protocol
    )
    options = {
        types.TEXT_DOCUMENT_CODE_ACTION: types.CodeActionOptions(code_action_kinds=list(KINDS)),
        types.TEXT_DOCUMENT_DIAGNOSTIC: types.DiagnosticOptions(
            identifier="jaxresid", inter_file_dependencies=True, workspace_diagnostics=False
        ),
        types.TEXT_DOCUMENT_DID_SAVE: types.SaveOptions(include_text=False),
    }
    session = Session(server)
    for name, handler in session.handlers().items():
        server.feature(name, options.get(name))(handler)
    for name, handler in session.commands().items():
        server.command(name)(handler)
    # What a library prints must not come between messages.
    answers = Output(os.dup(1))
    os.dup2(2, 1)
    messages = Input(sys.stdin.buffer, answers)
    server.start_io(cast(BinaryIO, messages), io.BufferedWriter(answers))
    return 0 if server.protocol.has_shut_down else 1
