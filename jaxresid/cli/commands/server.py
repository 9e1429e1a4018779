"""`jaxresid server`: what the linter finds, in editors."""

from __future__ import annotations

from jaxresid.cli.help import command


@command(examples=(("as editors start it, which then write and read messages", "jaxresid server"),))
def server() -> int:
    """Serve an editor that speaks the Language Server Protocol, over standard input and output.

    It lints files as they are edited, with fixes and the pages of rules. Editors start it; it opens
    no port, and neither imports nor runs what it reads. Needs the extra `server`: pip install
    'jaxresid[server]'.
    """
    from jaxresid.server.serve import serve

    return serve()
