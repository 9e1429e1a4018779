"""Run the command line in a process of its own, that ends when it is told to or left alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from jaxresid.base.errors import JaxresidError
from jaxresid.base.home import FOLDER
from jaxresid.revisions import child
from jaxresid.revisions.interpreters import lent_packages

_GRACE_S = 2.0
_PREFIX = "jaxresid: "
_LINE_END = re.compile(rb"[\r\n]+")
_MOST_LINES = 400


async def run(
    python: str, folder: Path, arguments: Sequence[str], say: Callable[[str], None]
) -> None:
    """Run a command; cancelled, nothing of it is left.

    Args:
      python: the interpreter.
      folder: the working directory.
      arguments: the words of the command line.
      say: called with what is being done.

    Raises:
      JaxresidError: It failed.
    """
    given = {
        "package": FOLDER.rstrip(os.sep),
        "lent": dict(lent_packages()),
        "first": [str(folder)],
        "hidden": None,
        "flags": [],
        "attended": True,
        "arguments": list(arguments),
    }
    process = await asyncio.create_subprocess_exec(
        *(python, "-P", str(child.__file__), json.dumps(given)),
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=sys.platform != "win32",
    )
    said: deque[str] = deque(maxlen=_MOST_LINES)
    try:
        assert process.stderr is not None
        async for text in _lines(process.stderr):
            said.append(text)
            if text.startswith(_PREFIX):
                say(text.removeprefix(_PREFIX))
        code = await process.wait()
    finally:
        if process.returncode is None:
            await _end(process)
    if code not in (0, 1):  # 1 is an answer
        from jaxresid.revisions.reports import reason_of  # 0.1 s, and objects for gc to walk

        raise JaxresidError(reason_of("\n".join(said), code))


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield the lines of a stream; what rewrites its line, as progress bars do, has several."""
    rest = b""
    while chunk := await stream.read(1 << 16):
        *lines, rest = _LINE_END.split(rest + chunk)
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip()
        rest = rest[-(1 << 16) :]
    yield rest.decode("utf-8", "replace").rstrip()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and all of its group: politely, then for good."""
    _signal(process.pid, signal.SIGTERM)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.shield(process.wait()), _GRACE_S)
    _signal(process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    await process.wait()


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
