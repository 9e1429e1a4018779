"""How long diagnostics take after a keystroke, beside `ruff server`, on the same file and edits.

    python -m tests.benchmarks.server [FILE] [--keystrokes N]

FILE is by default `core/lift.py` of the installed flax, 67 KB, in a copy of flax as a project. Both
servers are warm: the file is open and has been linted. Times are from the client's message to the
diagnostics of its version, in milliseconds.

Then how long hints of sixty lines, lenses and a hover take after a keystroke, in a file that a kept
result is of: 400 functions, forty of which are called and keep something. The hover waits for the
linter, which has nothing to find there.
"""

import argparse
import asyncio
import importlib.util
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lsprotocol import types

from tests.server import clients

RUFF = (shutil.which("ruff") or "ruff", "server")


async def latencies(argv, folder, file, keystrokes):
    """Seconds of each keystroke: a comment that is typed, one character after the other."""
    text, uri = file.read_text(), file.as_uri()
    row = text.count("\n") // 2
    seconds = []
    async with clients.connected(folder, argv=argv) as client:
        await client.open(uri, text)
        for number in range(keystrokes):
            at = types.Position(row, number)
            typed = "x" if number else "#\n"
            change = types.TextDocumentContentChangePartial(types.Range(at, at), typed)
            started = time.perf_counter()
            client.change(uri, number + 2, change)
            await client.found(uri, number + 2)
            seconds.append(time.perf_counter() - started)
            await asyncio.sleep(0.05)
    return seconds


def traced_project(folder):
    """A project with a kept result: its file, and the environment that knows the result."""
    layers = "\n\n".join(
        f"def layer_{number}(x, weights):\n"
        f"    # What comes after the block number {number} is wider.\n"
        "    wide = jnp.exp(x @ weights) + 1.0\n"
        "    return jnp.sin(wide) @ weights * 2.0\n"
        for number in range(400)
    )
    calls = "".join(f"    x = layer_{number}(x, weights)\n" for number in range(180, 220))
    loss = f"def loss(x, weights):\n{calls}    return x.sum()\n"
    text = f"import jax.numpy as jnp\n\n\n{layers}\n\n{loss}"
    file = folder / "model.py"
    file.write_text(text)
    (folder / "pyproject.toml").write_text(
        '[tool.jaxresid.targets.train]\ntarget = "model.py:loss"\non = "gpu:h100"\n'
        'args = ["f32[64,64]", "f32[64,64]"]\n'
    )
    env = {**clients.ENVIRONMENT, "JAXRESID_CACHE_DIR": str(folder / "cache")}
    report = [sys.executable, "-m", "jaxresid", "report", "train", "-q"]
    subprocess.run(report, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    return file, env


async def shown_latencies(folder, keystrokes):
    """Seconds of each answer after each keystroke, by what was asked for."""
    file, env = traced_project(folder)
    text, uri = file.read_text(), file.as_uri()
    row = text.splitlines().index("def layer_200(x, weights):")
    seconds = {"hints": [], "lenses": [], "hover": []}
    async with clients.connected(folder, env=env) as client:
        await client.open(uri, text)
        asked = {
            "hints": lambda: client.hints(uri, row - 30, row + 30),
            "lenses": lambda: client.lenses(uri),
            "hover": lambda: client.hover(uri, row + 3, 4),
        }
        for ask in asked.values():
            assert await ask()
        print(f"a kept result: {len(text) / 1000:.0f} KB, {len(await client.lenses(uri))} lenses")
        for number, (name, ask) in enumerate([*asked.items()] * keystrokes):
            at = types.Position(row - 2, number)
            typed = "x" if number else "#\n"
            change = types.TextDocumentContentChangePartial(types.Range(at, at), typed)
            started = time.perf_counter()
            client.change(uri, number + 2, change)
            assert await ask()
            seconds[name].append(time.perf_counter() - started)
            await client.found(uri, number + 2)
    return seconds


def print_times(name, seconds):
    """Print the median and the ninth decile."""
    median, ninth = statistics.median(seconds), statistics.quantiles(seconds, n=10)[-1]
    print(f"{name:10}{median * 1000:7.1f} ms, nine of ten {ninth * 1000:.1f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--keystrokes", type=int, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, file = Path(place), given.file
        if file is None:
            flax = Path(importlib.util.find_spec("flax").origin).parent
            shutil.copytree(flax, folder / "flax")
            file = folder / "flax" / "core" / "lift.py"
            (folder / "pyproject.toml").touch()
        else:
            file = file.absolute()
            folder = file.parent
        medians = {}
        for name, argv in (("jaxresid", clients.SERVER), ("ruff", RUFF)):
            seconds = asyncio.run(latencies(argv, folder, file, given.keystrokes))
            medians[name] = statistics.median(seconds)
            print_times(name, seconds)
    print(f"ratio     {medians['jaxresid'] / medians['ruff']:7.1f}")
    with tempfile.TemporaryDirectory() as place:
        for name, seconds in asyncio.run(shown_latencies(Path(place), given.keystrokes)).items():
            print_times(name, seconds)


if __name__ == "__main__":
    main()
