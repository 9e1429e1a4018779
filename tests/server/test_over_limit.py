"""A document that takes too long to lint says so, and holds up neither requests nor others."""

import asyncio
import sys
import time

import pytest

pytest.importorskip("pygls", reason="needs pygls, of the extra `server`")

from lsprotocol import types

from tests.server import clients

HANGS = f"import jax\nmatch x:\n case {'(' * 30}\njax.checkpoint(f)\n"
FINDING = "import jax\n\njax.checkpoint(f)\n"
START = """
from jaxresid.__main__ import main
from jaxresid.server import analysis_process as at
at._SERVE = f"from jaxresid.linter.text import time_limit; time_limit.SECONDS = 1; {at._SERVE}"
main()
"""


@pytest.mark.integration
def test_others_are_answered_meanwhile(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    slow, fine = (tmp_path / name for name in ("slow.py", "fine.py"))
    fine.write_text(FINDING)

    async def talk():
        argv = (sys.executable, "-c", START, "server")
        async with clients.connected(tmp_path, argv=argv) as client:
            assert [d.code for d in await client.open(fine.as_uri(), FINDING)] == ["JXR105"]
            begun = asyncio.ensure_future(client.open(slow.as_uri(), HANGS))
            await asyncio.sleep(0)
            start = time.monotonic()
            await client.lenses(fine.as_uri())
            assert not begun.done()
            assert time.monotonic() - start < 1
            (only,) = await begun
            assert (only.code, only.severity) == ("over-limit", types.DiagnosticSeverity.Error)
            assert only.message.startswith("not linted, as that takes over 1 s of CPU time")
            client.replace(fine.as_uri(), 2, FINDING.replace("jax.checkpoint(f)", "jax"))
            assert await client.found(fine.as_uri(), 2) == ()
            client.replace(slow.as_uri(), 2, FINDING)
            assert [d.code for d in await client.found(slow.as_uri(), 2)] == ["JXR105"]

    asyncio.run(talk())
