"""Time of the linter against ruff, `ast.parse` and others, measured in the same run.

    python tests/benchmarks/lint.py                     the installed jax and flax
    python tests/benchmarks/lint.py --tree PATH         another tree (may be given again)
    python tests/benchmarks/lint.py --packages DIR      every package unpacked below it, as a table
    python tests/benchmarks/lint.py --growth            in a file's size and functions, in files
    python tests/benchmarks/lint.py --flake8 PATH       flake8, Fixit, TorchFix where they are

What is compared is run in turn, and medians and the medians of the pairwise ratios are printed:
machines are noisy, seconds of two runs do not compare. Every command is a process of its own, its
start included. flake8, Fixit and TorchFix take minutes and run once.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BYTECODE = tempfile.TemporaryDirectory()
PARSE = """
import ast, sys, warnings
warnings.simplefilter("ignore")
for file in sys.stdin.read().split("\\n"):
    try:
        ast.parse(open(file, "rb").read())
    except SyntaxError:
        pass
"""
SCAN = """
import sys
for file in sys.stdin.read().split("\\n"):
    with open(file, "rb", buffering=0) as opened:
        raw = opened.readall()
    b"checkpoint" in raw or b"remat" in raw
"""
IRRELEVANT = "import os\n\n\ndef f(x):\n    return os.fspath(x)\n"


def seconds(command, stdin=b"", cwd=None):
    # As installed: compiled to bytecode, wherever this is run from.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": BYTECODE.name}
    start = time.perf_counter()
    done = subprocess.run(command, input=stdin, capture_output=True, env=env, cwd=cwd, check=False)
    taken = time.perf_counter() - start
    if done.returncode not in {0, 1}:  # 1: findings
        raise SystemExit(f"{command}: exit {done.returncode}\n{done.stderr.decode()[-2000:]}")
    return taken


def compare(title, entries, rounds, target=""):
    """Prints the ratios of the first entry to each other. An entry: name, command, stdin, cwd."""
    taken = {name: [] for name, *_ in entries}
    for _ in range(rounds):
        for name, *run in entries:
            taken[name].append(seconds(*run))
    print(f"\n{title}" + (f"   (target: {target})" if target else ""))
    (first, ours), *others = taken.items()
    print(f"  {first:<28} {statistics.median(ours):8.3f} s")
    for name, times in others:
        ratios = sorted(a / b for a, b in zip(ours, times, strict=True))
        print(
            f"  {name:<28} {statistics.median(times):8.3f} s  {first} takes "
            f"{statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )
    return statistics.median(ours)


def trees(given):
    if given:
        return [path.resolve() for path in given]
    found = []
    for name in ("jax", "flax"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            print(f"{name}: not installed")
        else:
            found.append(Path(spec.origin).parent)
    return found


def whole_tree(tree, options, ruff, work):
    copy = work / "trees" / tree.name  # out of site-packages, which linters pass by
    shutil.copytree(tree, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    files = sorted(str(p) for p in copy.rglob("*.py"))
    stdin = "\n".join(files).encode()
    nbytes = sum(os.path.getsize(f) for f in files)
    print(f"\n== {tree.name}: {len(files)} files, {nbytes / 1e6:.1f} MB")
    here = str(copy)
    lint = [sys.executable, "-m", "jaxresid", "lint", "--isolated", "-q", here]
    command = [*lint, "-j2"]
    seconds(command)  # writes the bytecode
    entries = [("jaxresid", command)]
    if ruff:
        entries.append(("ruff", [ruff, "check", "--no-cache", "--isolated", "-q", here]))
    entries.append(("ast.parse of every file", [sys.executable, "-c", PARSE], stdin))
    entries.append(("read and scan the bytes", [sys.executable, "-c", SCAN], stdin))
    start_up = [sys.executable, "-m", "jaxresid", "lint", "--help"]
    entries.append(("lint --help, the start-up", start_up))
    ours = compare("two processes", entries, options.rounds, "3x ruff, 1x ast.parse")
    slow = {
        "flake8": [options.flake8, "-j2", "--isolated", here],
        "Fixit": [options.fixit, "lint", here],
        "TorchFix": [options.torchfix, "-j2", here],
    }
    print("\nothers, once")
    for name, command in slow.items():
        if command[0] is None:
            print(f"  {name:<28} not installed")
        else:
            taken = seconds(command)
            print(f"  {name:<28} {taken:8.3f} s  jaxresid takes {ours / taken:.4f}x", flush=True)


def cpu_and_memory(command, cwd):
    """Return the processor's seconds that a command takes, and the bytes of its greatest size."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": BYTECODE.name}
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=null, stderr=null, env=env, cwd=cwd)
    _, _, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def cpu_and_wall(command, cwd=None):
    """Return the processor's seconds and those of the clock that a command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = seconds(command, cwd=cwd)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def packages(directory, options):
    """Print a table of packages: the least of several rounds, in which the commands alternate."""
    print("\n| package | files | MB | jaxresid | ruff | ratio | within |")
    print("|---|---|---|---|---|---|---|")
    lint = [sys.executable, "-m", "jaxresid", "lint", "--isolated", "-q", "-j2"]
    ruff = [options.ruff, "check", "--no-cache", "--isolated", "-q"]
    within, total = 0, 0
    for package in sorted(p for p in directory.resolve().iterdir() if p.is_dir()):
        files = list(package.rglob("*.py"))
        nbytes = sum(f.stat().st_size for f in files)
        seconds([*lint, str(package)])  # writes the bytecode
        rows = [
            (
                cpu_and_wall([*lint, str(package)]),
                cpu_and_wall([*ruff, str(package)]),
            )
            for _ in range(options.rounds)
        ]
        (ours, wall), (its, ruff_wall) = (
            (min(cpu for cpu, _ in column), min(clock for _, clock in column))
            for column in zip(*rows, strict=True)
        )
        good = wall <= max(0.15, 2 * ruff_wall)
        within, total = within + good, total + 1
        print(
            f"| {package.name} | {len(files):,} | {nbytes / 1e6:.1f} | {wall:.2f} s ({ours:.2f}) | "
            f"{ruff_wall:.2f} s ({its:.2f}) | {wall / ruff_wall:.1f} | "
            f"{'yes' if good else 'no'} |",
            flush=True,
        )
    print(
        f"\nin brackets: seconds of the processor; {within} of {total} within max(0.15 s, 2x ruff)"
    )


LAYER = """
def layer{0}(x, w):
    return jax.nn.relu(x @ w) + jnp.sin(x)


block{0} = jax.checkpoint(layer{0}, prevent_cse=False)


def loss{0}(x, w):
    return jnp.mean(block{0}(block{0}(x, w), w) ** 2)


grad{0} = jax.value_and_grad(loss{0})
"""
DENSE = """

def f{0}(x):
    y = f{1}(block0(x, x))
    z = jax.lax.scan(lambda c, _: (f{1}(c), None), y, None, length=3)[0]
    return jax.grad(f{1})(z) + jnp.sin(y)
"""
HEAD = "import jax\nimport jax.numpy as jnp\n"


def growth(options, work):
    """Print seconds of the processor and peak memory as a file, or a project, grows."""
    shapes = {
        "checkpoints of a file": lambda n: {
            "model.py": HEAD + "".join(map(LAYER.format, range(n)))
        },
        "functions of a file": lambda n: {
            "model.py": HEAD
            + LAYER.format(0)
            + "".join(f"\ndef f{i}(x):\n    return block0(f{i + 1}(x), x)\n" for i in range(n))
        },
        "calls of a checkpoint": lambda n: {
            "model.py": HEAD
            + LAYER.format(0)
            + "".join(f"\ndef f{i}(x):\n    return block0(x, x)\n" for i in range(n))
        },
        "dense functions of a file": lambda n: {
            "model.py": HEAD
            + LAYER.format(0)
            + "".join(map(DENSE.format, range(n), range(1, n + 1)))
        },
        "files of a project": lambda n: {
            "model.py": HEAD + LAYER.format(0),
            **{
                f"user{i}.py": f"import model\n\n\ndef f{i}(x):\n    return model.block0(x, {i})\n"
                for i in range(n)
            },
        },
        "files that do not import it": lambda n: {
            "model.py": HEAD + "".join(map(LAYER.format, range(20))),
            **{
                f"other{i}.py": "import numpy\n" + IRRELEVANT.replace("f(", "layer1(") * 50
                for i in range(n)
            },
        },
    }
    lint = [sys.executable, "-m", "jaxresid", "lint", "--isolated", "-q", "-j1"]
    (work / "model.py").write_text(IRRELEVANT)
    _, idle = cpu_and_memory([*lint, "model.py"], work)
    for title, made in shapes.items():
        print(f"\n{title}")
        before = None
        for n in (250, 500, 1000, 2000, *((5800,) if title.startswith("dense") else ())):
            directory = work / "growth" / title.replace(" ", "-") / str(n)
            directory.mkdir(parents=True)
            (directory / "setup.cfg").write_text("")
            nbytes = 0
            for name, text in made(n).items():
                (directory / name).write_text(text)
                nbytes += len(text)
            runs = [cpu_and_memory([*lint, "model.py"], directory) for _ in range(3)]
            taken, size = min(runs)[0], min(used for _, used in runs)
            per_byte = (size - idle) / nbytes
            ratio = f"  {taken / before:.2f}x of half as many" if before else ""
            print(
                f"  {n:6,} {nbytes / 1e6:7.2f} MB {taken:8.3f} s {size / 2**20:6.0f} MiB, "
                f"{per_byte:4.0f} B per byte of source{ratio}",
                flush=True,
            )
            before = taken


def staged(options, work):
    directory = work / "staged"
    directory.mkdir()
    names = [f"m{i}.py" for i in range(20)]
    for name in names:
        (directory / name).write_text(IRRELEVANT)
    lint = [sys.executable, "-m", "jaxresid", "lint", "--force-exclude", *names]
    click = [sys.executable, "-c", "import click"]
    entries = [("jaxresid", lint, b"", directory), ("import click", click)]
    for _, command, *where in entries:
        seconds(command, *where)  # writes the bytecode
    compare("20 staged files without JAX", entries, options.rounds * 3, "2x")


def editor(options, work):
    """One buffer of 70 KB."""
    directory = work / "editor"
    directory.mkdir()
    (directory / "pyproject.toml").write_text("[project]\nname = 'm'\nversion = '1'\n")
    text = HEAD
    for index in range(1000):
        if len(text) > 70_000:
            break
        text += LAYER.format(index)
    (directory / "model.py").write_text(text)
    lint = [sys.executable, "-m", "jaxresid", "lint", "-", "--stdin-filename", "model.py"]
    parse = [sys.executable, "-c", "import ast, sys; ast.parse(sys.stdin.read())"]
    stdin = text.encode()
    entries = [("jaxresid", lint, stdin, directory), ("python -c ast.parse", parse, stdin)]
    compare(f"editor, {len(text) / 1000:.0f} KB from stdin", entries, options.rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, action="append", help="a directory to lint")
    parser.add_argument("--packages", type=Path, help="a directory of unpacked packages")
    parser.add_argument("--growth", action="store_true", help="time made-up files of several sizes")
    parser.add_argument("--rounds", type=int, default=5)
    for tool in ("ruff", "flake8", "fixit", "torchfix"):
        beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        parser.add_argument(f"--{tool}", default=shutil.which(tool, path=beside))
    options = parser.parse_args()
    print(f"python {sys.version.split()[0]}, ruff {'found' if options.ruff else 'not installed'}")
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory).resolve()
        if options.packages or options.growth:
            if options.packages:
                packages(options.packages, options)
            if options.growth:
                growth(options, work)
            return
        staged(options, work)
        editor(options, work)
        for tree in trees(options.tree):
            whole_tree(tree, options, options.ruff, work)


if __name__ == "__main__":
    main()
