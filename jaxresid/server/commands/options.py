"""The options that a client gives the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of the server.

    Attributes:
      trusted: whether the user trusts the workspace; without it no command does anything.
      interpreter: the Python that traces: a file, an environment's folder or a command; None: the
        one of the project.
    """

    trusted: bool = True
    interpreter: str | None = None


def server_options(given: Any, before: ServerOptions = ServerOptions()) -> ServerOptions:
    """Return the options that a client gives; what it does not give, or not well, stays.

    Args:
      given: an object with the options, or with one of the name `jaxresid` that has them.
    """
    if isinstance(given, dict) and isinstance(given.get("jaxresid"), dict):
        given = given["jaxresid"]
    if not isinstance(given, dict):
        return before
    trusted, interpreter = given.get("trusted"), given.get("interpreter", before.interpreter)
    return ServerOptions(
        trusted if isinstance(trusted, bool) else before.trusted,
        interpreter if isinstance(interpreter, str) and interpreter else None,
    )
