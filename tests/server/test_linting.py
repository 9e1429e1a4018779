"""Results of a text that has changed since are dropped, whoever waits for them."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxresid.base.errors import JaxresidError
from jaxresid.base.violations import Linted
from jaxresid.server.buffers import Buffer
from jaxresid.server.documents import OpenFiles, TextFile
from jaxresid.server.linting import Linting

URI = "file:///project/a.py"


@pytest.fixture
def published():
    return []


@pytest.fixture
def told():
    return []


class Slow:
    """An analysis that takes as long as a test wants, and counts."""

    def __init__(self, error=None):
        self.begun, self.go, self.seen, self.error = threading.Event(), threading.Event(), [], error

    def lint(self, path, contents):
        self.seen.append(contents[path])
        self.begun.set()
        assert self.go.wait(20)
        if self.error is not None:
            raise self.error
        return Linted(str(path), ())


def opened(version):
    return TextFile(URI, Path("/project/a.py"), "python", Buffer(f"# {version}", version))


async def until(true):
    while not true():
        await asyncio.sleep(0.005)


def linting(files, executor, analysis, published, told):
    made = Linting(files, "utf-16", executor, published.append, told.append)
    made._analysis = analysis
    return made


def test_a_text_that_changed_meanwhile(published, told):
    async def talk(executor):
        files, slow = OpenFiles(), Slow()
        it = linting(files, executor, slow, published, told)
        files.put(opened(1))
        it.changed(URI)
        await until(slow.begun.is_set)
        asked = asyncio.ensure_future(it.findings(URI))
        await asyncio.sleep(0)
        files.put(opened(2))
        it.changed(URI)
        slow.go.set()
        findings = await asyncio.wait_for(asked, 20)
        assert findings.document.version == 2
        await until(lambda: published)
        assert [f.document.version for f in published] == [2]
        # It was linted once for who asked and for who is shown it.
        assert slow.seen == [b"# 1", b"# 2"]
        files.remove(URI)
        assert await it.findings(URI) is None

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(asyncio.wait_for(talk(executor), 30))


def test_a_text_that_was_closed_meanwhile(published, told):
    async def talk(executor):
        files, slow = OpenFiles(), Slow()
        it = linting(files, executor, slow, published, told)
        files.put(opened(1))
        it.changed(URI)
        await until(slow.begun.is_set)
        files.remove(URI)
        it.changed()
        slow.go.set()
        await until(it._pump.done)
        assert published == []

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(asyncio.wait_for(talk(executor), 30))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (JaxresidError("no such rule"), "jaxresid: no such rule"),
        (ValueError("odd"), "jaxresid: internal error: ValueError: odd (/project/a.py)"),
    ],
)
def test_what_goes_wrong_is_told_once_and_is_no_end(published, told, error, expected):
    async def talk(executor):
        files, slow = OpenFiles(), Slow(error)
        slow.go.set()
        it = linting(files, executor, slow, published, told)
        for version in (1, 2):
            files.put(opened(version))
            it.changed(URI)
            await until(lambda: len(published) == len(slow.seen) == files.file(URI).buffer.version)
        assert [f.violations for f in published] == [(), ()]
        assert told == [expected]

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(asyncio.wait_for(talk(executor), 30))
