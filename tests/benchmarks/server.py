"""How long diagnostics take after a keystroke, beside `ruff server`, on the same file and edits.

    python -m tests.benchmarks.server [FILE] [--keystrokes N]

FILE is by default `core/lift.py` of the installed flax, 67 KB, in a copy of flax as a project. Both
servers are warm: the file is open and has been linted. Times are from the client's message to the
diagnostics of its version, in milliseconds.
"""

import argparse
import asyncio
import importlib.util
import shutil
import statistics
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
            ninth = statistics.quantiles(seconds, n=10)[-1]
            print(f"{name:10}{medians[name] * 1000:7.1f} ms, nine of ten {ninth * 1000:.1f} ms")
    print(f"ratio     {medians['jaxresid'] / medians['ruff']:7.1f}")


if __name__ == "__main__":
    main()
