"""What the server shows of the last results of named targets, by a client over its pipes."""

import asyncio
import contextlib
import os
import re
import time
from dataclasses import replace

import jax
import pytest

pytest.importorskip("pygls", reason="needs pygls, of the extra `server`")

from lsprotocol import types

from jaxresid.base.violations import Span, Violation
from jaxresid.cli.main import run
from jaxresid.server.answers import Findings
from jaxresid.server.documents import OpenFiles
from jaxresid.server.traced.kept_results import KeptResults
from jaxresid.server.traced.shown import Shown
from jaxresid.server.traced.traces import Traces
from tests.server import clients

pytestmark = pytest.mark.integration

CONFIG = """[tool.jaxresid]
on = "tpu:v5e"
[tool.jaxresid.targets.train]
target = "model.py:loss"
"""
# 1 MiB is f32[512,512].
MODEL = """import jax
import jax.numpy as jnp
from sizes import N


def mlp(x, w):
    wide = "\N{GRINNING FACE}" and jnp.exp(x @ w)
    return jnp.sin(wide) @ w


def loss(x, w):
    x = jax.checkpoint(mlp)(x, w)
    x = mlp(x, w)
    return jax.checkpoint(jnp.sum)(x * x)


def loss_inputs():
    return jnp.ones((N, N)), jnp.ones((N, N))
"""
LINES = MODEL.splitlines()
STALE = " (before the last edit)"


def row(text):
    """The row of the only line that has a text."""
    (found,) = [n for n, line in enumerate(LINES, 1) if text in line]
    return found


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A project with a report and the findings of a check, and the cache that has them."""
    root = tmp_path_factory.mktemp("traced")
    work, cache = root / "work", root / "cache"
    work.mkdir()
    (work / "pyproject.toml").write_text(CONFIG)
    (work / "sizes.py").write_text("N = 512\n")
    (work / "model.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setenv("JAXRESID_CACHE_DIR", str(cache))
        assert run(["check", "train", "-q", "--exit-zero", "-o", str(root / "found.txt")]) == 0
        assert run(["report", "train", "-q", "-o", str(root / "report.txt")]) == 0
    return work, cache


def computed_by_jax():
    """The bytes of the leaves of `jax.vjp` that are no arguments."""
    made = {}
    exec(MODEL.replace("from sizes import N", "N = 512"), made)
    _, vjp = jax.vjp(made["loss"], *(inputs := made["loss_inputs"]()))
    places = {x.unsafe_buffer_pointer() for x in inputs}
    leaves = {x.unsafe_buffer_pointer(): x.nbytes for x in jax.tree.leaves(vjp)}
    return sum(nbytes for place, nbytes in leaves.items() if place not in places)


def talk(traced, session, *folders, **options):
    work, cache = traced
    env = {**clients.ENVIRONMENT, "JAXRESID_CACHE_DIR": str(cache)}

    async def talked():
        async with clients.connected(*(folders or (work,)), env=env, **options) as client:
            await session(client)
            assert client.messages == []

    asyncio.run(asyncio.wait_for(talked(), 120))


async def texts(client, uri):
    """The lenses that only say something."""
    return [(at, c.title) for at, c in await client.lenses(uri) if not c.command]


async def opened(client, path):
    await client.open(path.as_uri(), path.read_text())
    return path.as_uri()


def test_each_of_several_batch_sizes_is_shown(tmp_path, monkeypatch):
    """Until a report of one takes their place."""
    monkeypatch.setenv("JAXRESID_CACHE_DIR", str(tmp_path / "cache"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "pyproject.toml").write_text(f"{CONFIG}batch = [512, 1024]\n")
    path = work / "sized.py"
    path.write_text(
        "import jax.numpy as jnp\n\n\ndef loss(x):\n    return jnp.sin(x).sum()\n\n\n"
        "def loss_inputs(batch):\n    return (jnp.ones((batch, 512)),)\n"
    )
    config = work / "pyproject.toml"
    config.write_text(config.read_text().replace("model.py", "sized.py"))
    assert run(["check", "-q", "--exit-zero", "-o", str(tmp_path / "found.txt")]) == 0

    async def several(client):
        uri = await opened(client, path)
        hints = (await client.hints(uri))[5].split(" | ")
        assert [hint.partition(" kept")[0] for hint in hints] == [
            "train --batch 512: 1.00 MiB",
            "train --batch 1024: 2.00 MiB",
        ]
        titles = [title for _, title in await texts(client, uri) if "peak about" in title]
        assert [title.partition(":")[0] for title in titles] == [
            "train --batch 512",
            "train --batch 1024",
        ]
        page = (await client.hover(uri, 4, 4)).contents.value
        assert page.index("train --batch 512 on") < page.index("train --batch 1024 on")

    async def one(client):
        uri = await opened(client, path)
        assert (await client.hints(uri))[5].startswith("1.00 MiB kept")

    talk((work, tmp_path / "cache"), several)
    report = ["report", "train", "--batch", "512", "-q", "-o", str(tmp_path / "report.txt")]
    assert run(report) == 0
    talk((work, tmp_path / "cache"), one)


def test_hints_lenses_and_hovers_without_jax(traced):
    """The bytes of lines are what JAX keeps."""
    path = traced[0] / "model.py"

    async def session(client):
        uri = await opened(client, path)
        hints = await client.hints(uri)
        kept = {at: re.match(r"([\d.]+) MiB kept", text) for at, text in hints.items()}
        nmib = {at: float(match[1]) for at, match in kept.items() if match}
        # The derivative of exp needs exp; the other line has cos, sin, and the two products.
        assert nmib == {row("jnp.exp"): 1, row("jnp.sin"): 4}
        assert sum(nmib.values()) == computed_by_jax() / 2**20
        assert not any(STALE in text for text in hints.values())
        span = types.Range(types.Position(row("jnp.exp") - 1, 0), types.Position(99, 0))
        params = types.InlayHintParams(types.TextDocumentIdentifier(uri), span)
        found = await client.text_document_inlay_hint_async(params)
        first = next(h for h in found if h.position.line == row("jnp.exp") - 1)
        # Two units of UTF-16 for one character.
        assert first.position.character == len(LINES[row("jnp.exp") - 1]) + 1
        assert await client.hints(uri, first=0, last=row("jnp.exp") - 2) == {}

        lenses = await texts(client, uri)
        of_mlp = "keeps 5.00 MiB, 100.0% of all that is kept"
        assert [t for at, t in lenses if at == row("def mlp")] == [of_mlp]
        assert [t for at, t in lenses if at == row("def loss(")] == [
            "train: peak about 8.00 MiB · 5.00 MiB kept · tpu:v5e"
        ]
        (of_checkpoint,) = [t for at, t in lenses if at == row("(mlp)")]
        assert re.match("(earns its keep|saves nothing): peak ", of_checkpoint)
        page = await client.hover(uri, row("jnp.exp") - 1, 8)
        assert "**train on tpu:v5e**" in page.contents.value
        assert "This line keeps 1.00 MiB for the backward pass" in page.contents.value
        assert "| 1.00 MiB | `f32[512,512]` | exp | kept |" in page.contents.value
        assert await client.hover(uri, row("import jax.numpy") - 1, 3) is None

        with open(f"/proc/{client._server.pid}/maps") as file:
            loaded = file.read()
        assert "jaxlib" not in loaded
        assert "numpy" not in loaded

    talk(traced, session)


def test_findings_of_check_are_diagnostics_of_their_own(traced):
    path = traced[0] / "model.py"

    async def session(client):
        await client.until(lambda: client.refreshed_lenses)
        uri = path.as_uri()
        item = types.TextDocumentItem(uri, "python", 1, MODEL)
        client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        by_source = {d.source: d for d in (await client.pull(uri)).items}
        assert {source: d.code for source, d in by_source.items()} == {
            "jaxresid": "JXR107",
            "jaxresid check": "JXR102",
        }
        one = by_source["jaxresid check"]
        assert one.range.start.line + 1 == row("(jnp.sum)")
        (silenced,) = [
            a
            for a in await client.actions(uri, one.range.start.line, one.range.start.line)
            if a.title == "Silence JXR102 on this line"
        ]
        assert silenced.diagnostics == (one,)

    talk(traced, session, pull=True)


def test_edits_move_mark_and_drop(traced):
    path = traced[0] / "model.py"

    async def session(client):
        uri = await opened(client, path)
        before = await client.hints(uri)
        lenses = await texts(client, uri)
        await client.until(lambda: client.refreshed_hints)
        client.refreshed_hints = client.refreshed_lenses = 0
        # Two lines more in front of all else, and one line that is another.
        changed = MODEL.replace("jnp.sin(wide)", "jnp.sin(wide) * 1")
        client.replace(uri, 2, f"# one\n# two\n{changed}")
        found = await client.found(uri, 2)
        expected = {at + 2: t + STALE for at, t in before.items() if at != row("jnp.sin")}
        assert await client.hints(uri) == expected
        assert len(expected) == len(before) - 1
        assert await texts(client, uri) == [(at + 2, t + STALE) for at, t in lenses]
        (one,) = [d for d in found if d.source == "jaxresid check"]
        assert one.range.start.line + 1 == row("(jnp.sum)") + 2
        assert STALE in one.message
        page = await client.hover(uri, row("jnp.exp") + 1, 8)
        assert f"**train on tpu:v5e{STALE}**" in page.contents.value
        assert await client.hover(uri, row("jnp.sin") + 1, 8) is None
        await client.until(lambda: client.refreshed_hints and client.refreshed_lenses)
        # Typed away, all is as it was; and it is said once that it is.
        client.refreshed_hints = 0
        client.replace(uri, 3, MODEL)
        assert await client.hints(uri) == before
        await client.until(lambda: client.refreshed_hints)
        client.replace(uri, 4, MODEL.replace("(jnp.sum)", "( jnp.sum)"))
        assert not [d for d in await client.found(uri, 4) if d.source == "jaxresid check"]

    talk(traced, session)


def test_what_depends_on_a_file_that_changed_says_so(traced):
    """Also where nothing points at the file: a module that the program imports."""
    work, _ = traced

    async def session(client):
        uri = await opened(client, work / "model.py")
        other = await opened(client, work / "sizes.py")
        before = await client.hints(uri)
        client.replace(other, 2, "N = 1024\n")
        await client.found(other, 2)
        assert await client.hints(uri) == {at: t + STALE for at, t in before.items()}
        # Closed without saving, it is what the disk has.
        closed = types.TextDocumentIdentifier(other)
        client.text_document_did_close(types.DidCloseTextDocumentParams(closed))
        assert await client.hints(uri) == before
        # Another program writes it.
        (work / "sizes.py").write_text("N = 2048\n")
        try:
            assert await client.hints(uri) == {at: t + STALE for at, t in before.items()}
        finally:
            (work / "sizes.py").write_text("N = 512\n")

    talk(traced, session)


def test_new_results_are_picked_up_and_bad_ones_ignored(traced, tmp_path):
    work, cache = traced
    other = tmp_path / "cache"
    (other / "results").mkdir(parents=True)

    async def session(client):
        uri = await opened(client, work / "model.py")
        assert await client.hints(uri) == {}
        assert await texts(client, uri) == []
        client.refreshed_hints = client.refreshed_lenses = 0
        for entry in (cache / "results").glob("*.json"):
            data = entry.read_bytes()
            (other / "results" / entry.name).write_bytes(data[:-9] + data[-8:])
        (other / "results" / ("0" * 64 + ".json")).write_text("{")
        (other / "results" / ("1" * 64 + ".json")).symlink_to("/dev/zero")
        assert await client.hints(uri) == {}
        await asyncio.sleep(1.2)  # the server has looked by itself
        assert client.refreshed_hints == client.refreshed_lenses == 0
        for entry in (cache / "results").glob("*.json"):
            client.refreshed_hints = client.refreshed_lenses = 0
            (other / "results" / entry.name).write_bytes(entry.read_bytes())
            await client.until(lambda: client.refreshed_hints and client.refreshed_lenses)
        assert await client.hints(uri)
        await client.until(
            lambda: any(d.source == "jaxresid check" for d in client.published[-1].diagnostics)
        )

    talk((work, other), session)


def test_only_files_of_the_workspace_and_targets_that_are_named(traced, tmp_path):
    work, _ = traced
    (work / "inner").mkdir(exist_ok=True)

    async def session(client):
        uri = await opened(client, work / "model.py")
        assert await client.hints(uri) == {}  # as it is not in the workspace
        folder = types.WorkspaceFolder(work.as_uri(), work.name)
        event = types.WorkspaceFoldersChangeEvent(added=[folder], removed=[])
        client.workspace_did_change_workspace_folders(types.DidChangeWorkspaceFoldersParams(event))
        assert await client.hints(uri)
        with changed(work / "pyproject.toml", CONFIG.replace("targets.train", "targets.other")):
            assert await client.hints(uri) == {}

    talk(traced, session, work / "inner")


@contextlib.contextmanager
def changed(path, text):
    before, stat = path.read_text(), path.stat()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)
        os.utime(path, (time.time(), stat.st_mtime))


def test_what_the_linter_says_already_is_not_said_again(monkeypatch):
    known = Violation("JXR102", "x", "info", "of lint", "a.py", Span(2, 4, 2, 9))
    again = replace(known, message="of check")
    other = replace(again, code="JXR801")
    below = replace(again, span=Span(3, 4, 3, 9))

    async def added():
        traces = Traces(OpenFiles(), lambda: (), lambda is_new: None)
        monkeypatch.setattr(KeptResults, "all", ("one",))
        monkeypatch.setattr(Shown, "findings", lambda self, document: (again, other, below))
        return traces.added_to(Findings(None, (known,), {}, "utf-16")).traced

    assert asyncio.run(added()) == (other, below)
