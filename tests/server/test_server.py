"""The language server by a client of another project, over its pipes."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("pygls", reason="needs pygls, of the extra `server`")

from lsprotocol import types

from tests.server import clients, texts
from tests.where import ROOT

pytestmark = pytest.mark.integration

# A warning with an unsafe fix, behind a character of two units in UTF-16, and an error with a safe
# one.
BOTH = """import jax


def loss(w, x):
    return (w @ x).sum()


text = "\N{GRINNING FACE}"; step = jax.grad(jax.checkpoint(loss))
f = jax.checkpoint(loss, policy=jax.checkpoint_policies.nothing_saveable())
"""
MODEL = "import jax\n\n\n@jax.checkpoint\ndef loss(w, x):\n    return (w @ x).sum()\n"
TRAIN = "import jax\nfrom model import loss\n\nstep = jax.grad(loss)\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "pyproject.toml").write_text("[tool.jaxresid]\n")
    return tmp_path / "work"


def run(talk):
    return asyncio.run(asyncio.wait_for(talk, 120))


def codes(diagnostics):
    return [d.code for d in diagnostics]


def linted(path, *options):
    """What the command line says of a file, as JSON for editors."""
    argv = [sys.executable, "-m", "jaxresid", "lint", "-f", "lsp", *options, path]
    done = subprocess.run(argv, env=clients.ENVIRONMENT, capture_output=True, check=False)
    (file,) = json.loads(done.stdout)
    return file["diagnostics"]


def as_json(client, diagnostics):
    return [json.loads(json.dumps(client.protocol._converter.unstructure(d))) for d in diagnostics]


def test_findings_fixes_and_pages(folder):
    """What is found is what the command line says; actions and pages are of what is found."""
    path = folder / "both.py"
    path.write_text(BOTH)
    uri = path.as_uri()

    async def talk():
        async with clients.connected(folder) as client:
            diagnostics = await client.open(uri, BOTH)
            assert codes(diagnostics) == ["JXR101", "JXR202"]
            assert [d.severity for d in diagnostics] == [
                types.DiagnosticSeverity.Warning,
                types.DiagnosticSeverity.Error,
            ]
            assert as_json(client, diagnostics) == linted(path)
            warning, error = diagnostics

            actions = await client.actions(uri)
            kinds = [a.kind for a in actions]
            assert kinds == ["quickfix"] * 4 + ["source.fixAll.jaxresid"]
            assert [a.is_preferred for a in actions[::2]] == [False, True, None]
            assert actions[0].diagnostics == (warning,)
            assert actions[2].diagnostics == (error,)
            after = [texts.applied(BOTH, a.edit.document_changes[0].edits) for a in actions]
            assert after[0] == BOTH.replace("jax.checkpoint(loss))", "loss)")
            assert after[2] == after[4] == BOTH.replace("saveable()", "saveable")
            for index, code in ((1, "JXR101"), (3, "JXR202")):
                diagnostics = await client.open(uri, after[index], version=index + 10)
                assert codes(diagnostics) == [c for c in ("JXR101", "JXR202") if c != code]
            await client.open(uri, BOTH, version=2)
            (only,) = await client.actions(uri, only=["source.fixAll"])
            assert only.kind == "source.fixAll.jaxresid"
            assert only.edit.document_changes[0].text_document.version == 2
            assert len(await client.actions(uri, line=8, last=8, only=["quickfix"])) == 2
            assert len(await client.actions(uri, line=0, last=3)) == 1

            page = await client.hover(uri, 7, 40)
            assert page.contents.kind == "markdown"
            assert page.contents.value.startswith("**JXR101** `checkpointed-loss`\n")
            assert "### Why is this bad?" in page.contents.value
            assert page.range == warning.range
            assert await client.hover(uri, 4, 8) is None

            # Nothing is left of what is closed.
            which = types.TextDocumentIdentifier(uri)
            client.text_document_did_close(types.DidCloseTextDocumentParams(which))
            assert await client.found(uri, None) == ()
            assert await client.actions(uri) == ()
        assert client.code == 0
        assert client.messages == []

    run(talk())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-32"])
def test_positions_are_in_the_encoding_that_was_agreed_on(folder, encoding):
    uri = (folder / "both.py").as_uri()

    async def talk():
        offered = [types.PositionEncodingKind(encoding), types.PositionEncodingKind.Utf16]
        async with clients.connected(folder, encodings=offered, versions=False) as client:
            assert client.answer.capabilities.position_encoding == encoding
            start = BOTH.index("jax.checkpoint(loss)")
            warning, _ = await client.open(uri, BOTH)
            place = texts.position(BOTH, start, encoding)
            assert (warning.range.start.line, warning.range.start.character) == place
            fix = (await client.actions(uri))[0].edit.changes[uri]
            fixed = BOTH.replace("jax.checkpoint(loss))", "loss)")
            assert texts.applied(BOTH, fix, encoding) == fixed
            # The same, typed: the change begins behind the wide character.
            begin, end = (
                types.Position(*texts.position(BOTH, i, encoding)) for i in (start, start + 20)
            )
            change = types.TextDocumentContentChangePartial(types.Range(begin, end), "loss")
            client.change(uri, 2, change)
            assert codes(await client.found(uri, 2)) == ["JXR202"]

    run(talk())


def test_what_is_published_is_of_the_text_it_names(folder):
    """Many edits at once: results of texts that have changed since are dropped."""
    uri = (folder / "many.py").as_uri()
    # Long enough that edits come faster than results.
    rest = "".join(f"def f{n}(x):\n    return x * {n} + loss(x, x)\n\n\n" for n in range(400))
    nlines = BOTH.count("\n")

    async def talk():
        async with clients.connected(folder) as client:
            await client.open(uri, BOTH + rest)
            top = types.Range(types.Position(0, 0), types.Position(0, 0))
            for version in range(2, 42):
                # Each has one line more, and every second one a mistake more than the others.
                longer = types.TextDocumentContentChangePartial(top, "\n")
                last = version - 1 + nlines
                span = types.Range(types.Position(last - 1, 0), types.Position(last, 0))
                line = BOTH.splitlines()[-1] if version % 2 else ""
                change = types.TextDocumentContentChangePartial(span, f"{line}\n")
                client.change(uri, version, longer, change)
            assert len(await client.found(uri, 41)) == 2
            assert len(client.published) < 40  # a busy client sends slower
            for published in client.published:
                lines = [d.range.start.line - published.version for d in published.diagnostics]
                assert lines == ([6, 7] if published.version % 2 else [6])
            versions = [p.version for p in client.published]
            assert versions == sorted(set(versions))

    run(talk())


def test_files_see_what_is_not_saved(folder):
    """The index of the project has the text of the editor, and what changes it lints again."""
    model, train = folder / "model.py", folder / "train.py"
    model.write_text(MODEL)
    train.write_text("import jax\n")

    async def talk():
        async with clients.connected(folder) as client:
            assert await client.open(model.as_uri(), MODEL) == ()
            await client.open(train.as_uri(), "import jax\n")
            client.published.clear()
            client.replace(train.as_uri(), 2, TRAIN)
            diagnostics = (
                await client.until(lambda: [p for p in client.published if p.diagnostics])
            )[0]
            assert diagnostics.uri == model.as_uri()
            assert codes(diagnostics.diagnostics) == ["JXR101"]
            (related,) = diagnostics.diagnostics[0].related_information
            assert related.location.uri == train.as_uri()
            assert related.location.range.start.line == 3
            # Closed without saving, the file is again what the disk has.
            client.published.clear()
            which = types.TextDocumentIdentifier(train.as_uri())
            client.text_document_did_close(types.DidCloseTextDocumentParams(which))
            assert await client.found(model.as_uri(), 1) == ()

    run(talk())


def test_outside_of_the_workspace_neighbours_are_not_read(folder, tmp_path):
    for name, text in (("model.py", MODEL), ("train.py", TRAIN)):
        for place in (folder, tmp_path):
            (place / name).write_text(text)
    # Which would silence everything, and is no neighbour's business.
    (tmp_path / "pyproject.toml").write_text("[tool.jaxresid]\nselect = ['JXR9']\n")
    outside, inside = tmp_path / "model.py", folder / "model.py"

    async def talk():
        async with clients.connected(folder) as client:
            assert codes(await client.open(inside.as_uri(), MODEL)) == ["JXR101"]
            assert await client.open(outside.as_uri(), MODEL) == ()
            other = (tmp_path / "both.py").as_uri()
            assert codes(await client.open(other, BOTH)) == ["JXR101", "JXR202"]
            assert codes(await client.open("untitled:Untitled-1", BOTH)) == ["JXR101", "JXR202"]
            # Which belongs to the workspace as soon as its folder does.
            there = types.WorkspaceFolder(tmp_path.as_uri(), "all")
            event = types.WorkspaceFoldersChangeEvent([there], [])
            client.published.clear()
            client.workspace_did_change_workspace_folders(
                types.DidChangeWorkspaceFoldersParams(event)
            )
            await client.until(lambda: client.messages)
            assert "unknown rule `JXR9`" in client.messages[0]

    run(talk())


def test_settings_are_watched(folder):
    uri, settings = (folder / "both.py").as_uri(), folder / "pyproject.toml"

    async def talk():
        async with clients.connected(folder) as client:
            assert len(await client.open(uri, BOTH)) == 2
            await client.until(lambda: client.registered)
            assert client.registered[0].method == "workspace/didChangeWatchedFiles"
            changed = types.FileEvent(settings.as_uri(), types.FileChangeType.Changed)
            for text, expected in (
                ("[tool.jaxresid]\nignore = ['JXR101']\n", ["JXR202"]),
                ("[tool.jaxresid]\nignored = []\n", []),
                ("[tool.jaxresid]\nexclude = ['both.py']\n", []),
                ("", ["JXR101", "JXR202"]),
            ):
                settings.write_text(text)
                (folder / "both.py").write_text(BOTH)
                client.published.clear()
                client.workspace_did_change_watched_files(
                    types.DidChangeWatchedFilesParams([changed])
                )
                assert codes(await client.found(uri, 1)) == expected
            (told,) = client.messages
            assert told.startswith(f"jaxresid: {settings}:2: ")
            assert "ignored" in told

    run(talk())


def test_diagnostics_are_pulled_by_clients_that_can(folder):
    uri = (folder / "both.py").as_uri()

    async def talk():
        async with clients.connected(folder, pull=True) as client:
            item = types.TextDocumentItem(uri, "python", 1, BOTH)
            client.text_document_did_open(types.DidOpenTextDocumentParams(item))
            assert codes((await client.pull(uri)).items) == ["JXR101", "JXR202"]
            client.replace(uri, 2, TRAIN)
            client.replace(uri, 3, BOTH + "\n")
            assert len((await client.pull(uri)).items) == 2
            assert (await client.pull("file:///not/open.py")).items == ()
            client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams([]))
            await client.until(lambda: client.refreshed)
            assert client.published == []

    run(talk())


CELLS = ["%matplotlib inline\n" + BOTH[: BOTH.index("text")], "# prose", BOTH[BOTH.index("text") :]]


def test_notebooks(folder):
    """The cells are one program: what is found in one depends on the others."""
    uri = (folder / "a.ipynb").as_uri()
    parts = [f"{uri.replace('file', 'vscode-notebook-cell')}#{n}" for n in range(4)]
    kinds = [
        types.NotebookCellKind.Code,
        types.NotebookCellKind.Markup,
        types.NotebookCellKind.Code,
    ]

    async def talk():
        async with clients.connected(folder) as client:
            cells = [types.NotebookCell(k, p) for k, p in zip(kinds, parts, strict=False)]
            items = [
                types.TextDocumentItem(p, "python", 1, text)
                for p, text, kind in zip(parts, CELLS, kinds, strict=False)
                if kind == types.NotebookCellKind.Code
            ]
            notebook = types.NotebookDocument(uri, "jupyter-notebook", 1, cells)
            client.notebook_document_did_open(types.DidOpenNotebookDocumentParams(notebook, items))
            assert await client.found(parts[0], 1) == ()
            warning, error = await client.found(parts[2], 1)
            assert (warning.range.start.line, error.range.start.line) == (0, 1)
            actions = await client.actions(parts[2])
            (change,) = actions[-1].edit.document_changes
            assert change.text_document.uri == parts[2]
            fixed = texts.applied(CELLS[2], change.edits)
            assert fixed == CELLS[2].replace("saveable()", "saveable")
            page = await client.hover(parts[2], 1, 40)
            assert page.contents.value.startswith("**JXR202**")

            # The cell of the loss becomes another, and the error is typed away.
            later = [types.NotebookCell(types.NotebookCellKind.Code, parts[3])]
            which = types.VersionedTextDocumentIdentifier(2, parts[2])
            typed = types.TextDocumentContentChangeWholeDocument(fixed)
            changes = types.NotebookDocumentCellChanges(
                structure=types.NotebookDocumentCellChangeStructure(
                    array=types.NotebookCellArrayChange(0, 1, later),
                    did_open=[
                        types.TextDocumentItem(parts[3], "python", 1, "import other as jax\n")
                    ],
                    did_close=[types.TextDocumentIdentifier(parts[0])],
                ),
                text_content=[types.NotebookDocumentCellContentChanges(which, [typed])],
            )
            client.published.clear()
            client.notebook_document_did_change(
                types.DidChangeNotebookDocumentParams(
                    types.VersionedNotebookDocumentIdentifier(2, uri),
                    types.NotebookDocumentChangeEvent(cells=changes),
                )
            )
            assert await client.found(parts[2], 2) == ()
            assert await client.found(parts[0], None) == ()
        assert client.messages == []

    run(talk())


def message(**body):
    raw = json.dumps({"jsonrpc": "2.0", **body}).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(raw), raw)


def answers(*sent):
    """The exit code, and what the server answers to bytes, in order."""
    argv = [sys.executable, "-m", "jaxresid", "server"]
    done = subprocess.run(
        argv,
        input=b"".join(sent),
        env=clients.ENVIRONMENT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    bodies = done.stdout.split(b"Content-Length: ")[1:]
    found = [json.loads(body.partition(b"\r\n\r\n")[2]) for body in bodies]
    return done.returncode, found, done.stderr.decode()


def test_malformed_and_unordered_messages_are_answered(folder):
    uri = (folder / "both.py").as_uri()
    document = {"uri": uri, "languageId": "python", "version": 1, "text": BOTH}
    started = {"capabilities": {}, "rootUri": folder.as_uri(), "processId": None}
    typed = {"textDocument": {"uri": uri, "version": 4}, "contentChanges": [{"text": ""}]}
    hover = {"textDocument": {"uri": uri}, "position": {"line": 8, "character": 40}}
    code, found, errors = answers(
        message(id=1, method="textDocument/hover", params=hover),
        message(method="textDocument/didOpen", params={"textDocument": document}),
        message(id=2, method="initialize", params=started),
        message(id=3, method="initialize", params=started),
        message(method="initialized", params={}),
        b"Content-Length: 9\r\n\r\nnot json!",
        message(id=4, method="textDocument/hover", params={"textDocument": 7}),
        message(id=5, method="textDocument/none-such", params={}),
        message(method="textDocument/didChange", params=typed),  # before it is opened
        message(method="textDocument/didClose", params={"textDocument": {"uri": uri}}),
        message(method="$/cancelRequest", params={"id": 99}),
        message(id=98, result=None),  # to no question
        message(method="textDocument/didOpen", params={"textDocument": document}),
        message(method="textDocument/didOpen", params={"textDocument": document}),
        message(id=6, method="textDocument/hover", params=hover),
        message(id=7, method="textDocument/hover", params=hover),
        message(method="$/cancelRequest", params={"id": 7}),
        message(id=8, method="shutdown"),
        message(id=9, method="textDocument/hover", params=hover),
        message(method="exit"),
    )
    by_id = {m["id"]: m for m in found if "id" in m and "method" not in m}
    assert {i: m["error"]["code"] for i, m in by_id.items() if "error" in m} == {
        1: -32002,
        3: -32600,
        4: -32602,
        5: -32601,
        6: -32800,  # the shutdown cancels what is not done
        7: -32800,
        9: -32600,
    }
    assert by_id[2]["result"]["serverInfo"]["name"] == "jaxresid"
    assert by_id[8]["result"] is None
    assert code == 0
    assert "Traceback" not in errors


def test_who_leaves_without_a_word(folder):
    assert answers()[0] == 1
    assert answers(message(method="exit"))[0] == 1
    assert answers(b"Content-Length: 100\r\n\r\n{")[0] == 1


def test_killed_and_started_again(folder):
    uri = (folder / "both.py").as_uri()

    async def killed():
        async with clients.connected(folder) as client:
            first.append(await client.open(uri, BOTH))
            client._server.kill()
            await client._server.wait()
            raise ConnectionError

    async def again():
        async with clients.connected(folder) as client:
            assert await client.open(uri, BOTH) == first[0]
        assert client.code == 0

    first = []
    with pytest.raises(ConnectionError):
        run(killed())
    run(again())


def test_it_loads_no_jax_and_opens_no_port(folder):
    (folder / "mine.py").write_text("import jax\nraise SystemExit('I was run')\n")
    uri = (folder / "mine.py").as_uri()

    async def talk():
        async with clients.connected(folder) as client:
            await client.open(uri, "import jax\njax.checkpoint\nraise SystemExit('I was run')\n")
            place = f"/proc/{client._server.pid}"
            with open(f"{place}/maps") as file:
                loaded = file.read()
            assert "jaxlib" not in loaded
            assert "numpy" not in loaded
            opened = {os.readlink(f"{place}/fd/{n}") for n in os.listdir(f"{place}/fd")}
            for protocol in ("tcp", "tcp6", "udp", "udp6"):
                with open(f"{place}/net/{protocol}") as file:
                    inodes = {f"socket:[{line.split()[9]}]" for line in file.readlines()[1:]}
                assert not opened & inodes
        assert client.code == 0

    run(talk())


def test_without_the_extra_it_is_one_line():
    script = (
        "import sys; sys.modules['pygls'] = None\n"
        "from jaxresid.cli.main import run\nsys.exit(run(['server']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "jaxresid: error: `jaxresid server` needs pygls and lsprotocol:"
        " pip install 'jaxresid[server]'\n"
    )


PRINTING = """
from jaxresid.server import linting
from jaxresid.server.serve import serve

use = linting.Linting.use
linting.Linting.use = lambda *args: (print("noise", flush=True), use(*args))
raise SystemExit(serve())
"""


def test_what_a_library_prints_is_no_message(folder):
    asked = [
        {"id": 1, "method": "initialize", "params": {"processId": None, "capabilities": {}}},
        {"id": 2, "method": "shutdown"},
        {"method": "exit"},
    ]
    bodies = [json.dumps({"jsonrpc": "2.0", **message}) for message in asked]
    sent = "".join(f"Content-Length: {len(body)}\r\n\r\n{body}" for body in bodies)
    done = subprocess.run(
        [sys.executable, "-c", PRINTING],
        env=clients.ENVIRONMENT,
        cwd=folder,
        input=sent.encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith(b"Content-Length: ")
    assert b"noise" not in done.stdout
    assert b"noise" in done.stderr
