"""The commands of the server, by a client over its pipes, with processes that really trace."""

import asyncio
import importlib.util
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("pygls", reason="needs pygls, of the extra `server`")

from lsprotocol import types
from pygls.exceptions import JsonRpcException

from jaxresid.base.errors import InputsError
from jaxresid.serialization.latest import read
from jaxresid.server.commands.options import ServerOptions, server_options
from jaxresid.server.commands.projects import ProjectTarget, python_of
from tests.server import clients, texts

MODEL = """import jax.numpy as jnp


def layer(x, w):
    return jnp.sin(jnp.sin(x @ w))


def deep(x, w):
    for _ in range(4):
        x = layer(x, w)
    return x.sum()


def deep_inputs():
    return jnp.ones((4096, 64)), jnp.ones((64, 64))
"""
# It starts a process of its own and takes long; both write their numbers.
SLOW = """import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with open("pids", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename("pids", "running")
time.sleep(60)
"""
CONFIG = """[tool.jaxresid]
on = "tpu:v5e"
[tool.jaxresid.targets.deep]
target = "model.py:deep"
[tool.jaxresid.targets.slow]
target = "slow.py:loss"
[tool.jaxresid.targets.far]
target = "../far.py:loss"
"""
TOLD = "jaxresid: "


@pytest.fixture
def work(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "pyproject.toml").write_text(CONFIG)
    (work / "model.py").write_text(MODEL)
    (work / "slow.py").write_text(SLOW)
    (tmp_path / "far.py").write_text(MODEL)
    return work


def talk(work, session, **options):
    env = {**clients.ENVIRONMENT, "JAXRESID_CACHE_DIR": str(work.parent / "cache")}

    async def talked():
        async with clients.connected(work, env=env, **options) as client:
            await session(client)

    asyncio.run(asyncio.wait_for(talked(), 120))


async def told(client):
    """The next message, without what each begins with."""
    await client.until(lambda: client.messages)
    message = client.messages.pop(0)
    assert message.startswith(TOLD)
    assert "\n" not in message
    return message.removeprefix(TOLD)


async def titles(client, uri):
    return {c.command: c.title for _, c in await client.lenses(uri) if c.command}


@pytest.mark.integration
def test_trace_plan_and_apply(work):
    path = work / "model.py"

    async def session(client):
        uri = path.as_uri()
        await client.open(uri, MODEL)
        offered = client.answer.capabilities.execute_command_provider.commands
        assert {*offered} >= {"jaxresid.trace", "jaxresid.plan", "jaxresid.applyPlan"}
        assert {*await titles(client, uri)} == {"jaxresid.trace", "jaxresid.plan"}
        commands = {c.command: c for _, c in await client.lenses(uri)}
        assert {a.title for a in await client.actions(uri, 7, 7)} == {"Trace deep", "Plan deep"}

        # As the lens says it.
        trace = commands["jaxresid.trace"]
        assert await client.execute(trace.command, *trace.arguments) is True
        assert await told(client) == "deep: peak about 11.56 MiB · 11.00 MiB kept · tpu:v5e"
        steps = [value["kind"] for _, value in client.progress]
        assert (steps[0], steps[-1]) == ("begin", "end")
        assert client.progress[0][1]["title"] == "jaxresid: tracing deep"
        assert any(v.get("message") == "tracing model.py:deep" for _, v in client.progress)
        assert await client.hints(uri)

        assert await client.execute("jaxresid.applyPlan", "deep") is False
        assert await told(client) == "there is no plan of deep yet: plan first"
        assert await client.execute("jaxresid.plan", "deep", "10MiB") is True
        assert await told(client) == (
            "deep: peak about 9.53 MiB, too close to 10.00 MiB, 0.0% recomputed"
        )
        assert "10.00 MiB" in (await titles(client, uri))["jaxresid.applyPlan"]

        client.replace(uri, 2, MODEL + "# more\n")
        assert await client.execute("jaxresid.applyPlan", "deep") is False
        assert await told(client) == f"{path} changed since deep was planned: plan it again"
        assert {*await titles(client, uri)} == {"jaxresid.trace", "jaxresid.plan"}
        client.replace(uri, 3, MODEL)
        # Also where another file that it depends on has changed, on the disk.
        config = work / "pyproject.toml"
        config.write_text(CONFIG + "# more\n")
        assert await client.execute("jaxresid.applyPlan", "deep") is False
        assert await told(client) == f"{config} changed since deep was planned: plan it again"
        config.write_text(CONFIG)
        assert client.edits == []
        assert await client.execute("jaxresid.applyPlan", "deep", work.as_uri()) is True
        (change,) = client.edits[0].document_changes
        assert (change.text_document.uri, change.text_document.version) == (uri, 3)
        return texts.applied(MODEL, change.edits)

    found = []

    async def kept(client):
        found.append(await session(client))

    talk(work, kept)
    # What `--write` would have written: tests/cli/test_kept_results.py.
    results = map(read, (work.parent / "cache" / "results").glob("*.json"))
    (plan,) = [each for each in results if each.head.command == "plan"]
    assert found == [edit.text for edit in plan.edits]
    assert found != [MODEL]


@pytest.mark.integration
def test_a_clients_own_token_has_the_progress_until_the_answer(work):
    async def session(client):
        assert client.answer.capabilities.execute_command_provider.work_done_progress is True
        assert await client.execute("jaxresid.trace", "deep", token="mine") is True
        assert (await told(client)).startswith("deep: peak")
        steps = [value["kind"] for token, value in client.progress if token == "mine"]
        assert (steps[0], steps[-1], len(steps)) == ("begin", "end", len(client.progress))
        assert "report" in steps
        # Stopped by the token, and by taking the request back: 7 is another token.
        for token in ("mine", 7):
            slow = asyncio.ensure_future(client.execute("jaxresid.trace", "slow", token=token))
            numbers = await pids(client, work)
            assert not slow.done()
            if token == "mine":
                params = types.WorkDoneProgressCancelParams(token)
                client.window_work_done_progress_cancel(params)
                assert await slow is False
            else:
                futures = client.protocol._request_futures.items()
                (request,) = [number for number, future in futures if not future.done()]
                client.cancel_request(types.CancelParams(request))
            assert await told(client) == "tracing slow: stopped"
            assert client.progress[-1] == (token, {"kind": "end"})
            assert await gone(numbers)
        with pytest.raises(JsonRpcException, match=r"there is no command 'jaxresid\.none'"):
            await client.execute("jaxresid.none", token="mine")

    talk(work, session)


async def pids(client, work):
    """The numbers of the processes that trace, once they are there."""
    running = work / "running"
    for _ in range(2000):
        if running.exists():
            found = [int(n) for n in running.read_text().split()]
            running.unlink()
            return found
        await asyncio.sleep(0.01)
    raise TimeoutError


async def gone(numbers):
    for _ in range(500):
        if not any(alive(n) for n in numbers):
            return True
        await asyncio.sleep(0.01)
    return False


def alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.integration
@pytest.mark.parametrize("way", ["shutdown", "kill"])
def test_what_is_stopped_or_left_alone_leaves_no_process(work, way):
    async def session(client):
        if way == "shutdown":
            assert await client.execute("jaxresid.trace", "slow") is True
            first = await pids(client, work)
            assert await client.execute("jaxresid.trace", "deep") is False
            assert await told(client) == "one thing at a time: tracing slow is under way"
            token = client.progress[-1][0]
            for each in ("another", token):
                await asyncio.sleep(0.3)
                assert all(map(alive, first))
                params = types.WorkDoneProgressCancelParams(each)
                client.window_work_done_progress_cancel(params)
            assert await told(client) == "tracing slow: stopped"
            assert await gone(first)
            assert client.progress[-1][1]["kind"] == "end"
        assert await client.execute("jaxresid.trace", "slow") is True
        left.extend(await pids(client, work))
        assert all(map(alive, left))
        if way == "kill":
            client._server.kill()
            assert await gone(left)
            raise ConnectionError

    left = []
    if way == "kill":
        with pytest.raises(ConnectionError):
            talk(work, session)
    else:
        talk(work, session)  # which shuts the server down
    assert asyncio.run(gone(left))


@pytest.mark.integration
def test_what_is_refused_is_one_line(work, tmp_path):
    async def session(client):
        await client.open((work / "model.py").as_uri(), MODEL)

        async def refused(command, *arguments):
            assert await client.execute(f"jaxresid.{command}", *arguments) is False
            return await told(client)

        assert await refused("trace", "dep") == (
            "no target 'dep'; did you mean `deep`? (known: deep, far, slow)"
        )
        assert "name a target" in await refused("trace")
        assert "write text" in await refused("trace", 7)
        assert "nothing more" in await refused("trace", "deep", work.as_uri(), "x")
        outside = await refused("trace", "deep", tmp_path.as_uri())
        assert outside == f"{tmp_path} is outside of the workspace: nothing is run there"
        (work / "link").symlink_to(tmp_path)
        assert "outside" in await refused("trace", "deep", (work / "link").as_uri())
        assert "outside" in await refused("trace", "far")
        assert "no absolute folder" in await refused("trace", "deep", "work")
        changed = types.DidChangeConfigurationParams({"jaxresid": {"interpreter": "./nowhere"}})
        client.workspace_did_change_configuration(changed)
        assert "no such interpreter" in await refused("trace", "deep")
        client.workspace_did_change_configuration(
            types.DidChangeConfigurationParams({"jaxresid": {"interpreter": sys.executable}})
        )
        # What the command line says, where it refuses.
        assert await client.execute("jaxresid.plan", "deep", "lots") is True
        said = await told(client)
        assert said.startswith("planning deep: Invalid value for '--budget': not a size such as")
        assert not (work / "running").exists()

    async def untrusted(client):
        uri = (work / "model.py").as_uri()
        await client.open(uri, MODEL)
        assert await titles(client, uri) == {}
        assert await client.actions(uri, 7, 7) == ()
        for command in ("trace", "plan", "applyPlan"):
            assert await client.execute(f"jaxresid.{command}", "deep") is False
            assert await told(client) == "commands are off, as the workspace is not trusted"

    talk(work, session)
    talk(work, untrusted, options={"trusted": False})


@pytest.mark.integration
def test_the_targets_of_the_workspace(work, tmp_path):
    """Of its folders, and of the projects that open files are in; of no folder beside it."""
    for folder in (work / "nested", tmp_path / "beside"):
        folder.mkdir()
        (folder / "pyproject.toml").write_text(CONFIG.partition("[tool.jaxresid.targets.slow]")[0])
        (folder / "model.py").write_text(MODEL)

    async def session(client):
        mine = [{"name": name, "folder": str(work)} for name in ("deep", "far", "slow")]
        assert sorted(await client.execute("jaxresid.targets"), key=str) == sorted(mine, key=str)
        for folder in (work / "nested", tmp_path / "beside"):
            await client.open((folder / "model.py").as_uri(), MODEL)
        nested = {"name": "deep", "folder": str(work / "nested")}
        found = await client.execute("jaxresid.targets")
        assert sorted(found, key=str) == sorted([*mine, nested], key=str)

    talk(work, session, options={"trusted": False})


def test_which_python_traces(tmp_path, monkeypatch):
    target = ProjectTarget("train", tmp_path / "a" / "b", tmp_path / "a")
    target.folder.mkdir(parents=True)
    assert python_of(target, None) == sys.executable
    assert python_of(target, sys.executable) == sys.executable
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputsError, match="no Python with JAX for the target 'train'"):
        python_of(target, None)

    def environment(folder):
        (folder / ".venv" / "bin").mkdir(parents=True)
        python = folder / ".venv" / "bin" / "python"
        python.symlink_to(sys.executable)
        return str(python)

    environment(tmp_path)  # which is above the workspace
    with pytest.raises(InputsError):
        python_of(target, None)
    outer = environment(target.root)
    assert python_of(target, None) == outer
    inner = environment(target.folder)
    assert python_of(target, None) == inner
    # Relative to the folder of the workspace; a word alone is a command.
    assert python_of(target, ".venv/bin/python") == outer
    monkeypatch.setenv("PATH", os.path.dirname(inner))
    assert python_of(target, "python") == inner
    with pytest.raises(InputsError, match=r"the interpreter .*none: no such interpreter"):
        python_of(target, "./none")


def test_options():
    assert server_options(None) == ServerOptions() == ServerOptions(True, None)
    assert server_options({"trusted": False, "interpreter": "x"}) == ServerOptions(False, "x")
    before = ServerOptions(False, "x")
    assert server_options({"jaxresid": {"trusted": True}}, before) == ServerOptions(True, "x")
    assert server_options({"trusted": "yes", "interpreter": 7}, before) == ServerOptions(
        False, None
    )
    assert server_options([1], before) == before
