"""`jaxresid server`: what the linter and the last traces find, in editors."""

from __future__ import annotations

from jaxresid.cli.help import command


@command(examples=(("as editors start it, which then write and read messages", "jaxresid server"),))
def server() -> int:
    """Serve an editor that speaks the Language Server Protocol, over standard input and output.

    It lints files as they are edited, with fixes and the pages of rules, and shows what the last
    traces of the targets of pyproject.toml found. Editors start it; it opens no port, and neither
    imports nor runs what it reads, unless its user asks for a trace. Needs the extra `server`: pip
    install 'jaxresid[server]'.
    """
    from jaxresid.server.serve import serve

    return serve()
