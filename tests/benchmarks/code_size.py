"""The size of the package by room and kind of line, and its habits beside those of other packages.

    python tests/benchmarks/code_size.py jaxresid [NAME=FOLDER ...]

A FOLDER is a package, as `pip install --no-deps --target` unpacks it. Only its `*.py` count,
without folders named `tests`. First come the lines of the first package, by room (the first folder
below it; `.` is its top) and kind: docstrings with the blank lines inside them, blank lines, lines
that are only a comment, and code, which has all lines of any other string. Then a table with a
column for each package:

- a function's length is from its `def` to its last line, docstring included and decorators not; one
  inside another counts in both;
- rule modules are those of the `rules` folder that has most of them, without `__init__.py`;
- broad are `except Exception`, `except BaseException`, a tuple with one of them, and a bare
  `except`;
- parameters are all but `self` and `cls`; `*args` and `**kwargs` are one each.

On 2026-11-28, and the day before (2256f767), beside Fixit 2.2.1, equinox 0.13.8, treescope 0.1.10
and memray 1.20.0, whose `*.pyx` and C++ do not count:

                                   before        now      Fixit    equinox  treescope     memray
    lines                         120,693    108,344      7,389     15,939     15,125      5,352
    modules                           735        792         48         72         53         37
    median module                     128        117        130      133.5        184         74
    modules over 400 lines             50         21          1         12         13          4
    median function                     8          8         13          7         14          9
    95th percentile function           31         30         68         62         89         59
    median rule module              351.5      153.5      143.5          -          -          -
    docstrings, % of lines           16.3       14.0        8.1       26.2       21.2        2.6
    broad excepts per 1,000          0.84       0.78       1.22       0.13       0.40       0.56
    6 or more parameters               77         75          2         54         11         13
    the same per 1,000               0.64       0.69       0.27       3.39       0.73       2.43
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = ("docstring", "blank", "comment", "code")
LONG_MODULE = 400
MANY_PARAMETERS = 6
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Documented = ast.Module | ast.ClassDef | _Function


@dataclass(frozen=True, slots=True)
class Module:
    """A module as it counts.

    Attributes:
      path: below the package.
      kinds: the kind of each of its lines, one of `KINDS`.
      lengths: lines of its functions.
      parameters: how many each of its functions has.
      broad: how many of its `except` are broad.
    """

    path: Path
    kinds: tuple[str, ...]
    lengths: tuple[int, ...]
    parameters: tuple[int, ...]
    broad: int


def modules(package: Path) -> tuple[Module, ...]:
    """Return the modules of a package, sorted by path."""
    paths = sorted(path.relative_to(package) for path in package.rglob("*.py"))
    return tuple(_module(package, path) for path in paths if "tests" not in path.parent.parts)


def _module(package: Path, path: Path) -> Module:
    source = (package / path).read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    functions = [node for node in nodes if isinstance(node, _Function)]
    return Module(
        path,
        _kinds(source, nodes),
        tuple((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions),
        tuple(_parameter_count(node.args) for node in functions),
        sum(_is_broad(node.type) for node in nodes if isinstance(node, ast.ExceptHandler)),
    )


def _kinds(source: str, nodes: list[ast.AST]) -> tuple[str, ...]:
    kinds = ["code"] * len(io.StringIO(source).readlines())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NL and not token.line.strip():
            kinds[token.start[0] - 1] = "blank"
        elif token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            kinds[token.start[0] - 1] = "comment"
    for node in nodes:
        if isinstance(node, _Documented) and ast.get_docstring(node, clean=False) is not None:
            rows = slice(node.body[0].lineno - 1, node.body[0].end_lineno)
            kinds[rows] = ["docstring"] * len(kinds[rows])
    return tuple(kinds)


def _parameter_count(arguments: ast.arguments) -> int:
    positional = (*arguments.posonlyargs, *arguments.args)
    others = (arguments.vararg, *arguments.kwonlyargs, arguments.kwarg)
    return sum(p is not None and p.arg not in {"self", "cls"} for p in (*positional, *others))


def _is_broad(caught: ast.expr | None) -> bool:
    names = caught.elts if isinstance(caught, ast.Tuple) else (caught,)
    return any(n is None or ast.unparse(n) in {"Exception", "BaseException"} for n in names)


def rooms(package: tuple[Module, ...]) -> Iterator[str]:
    """Yield the lines of the table of rooms, largest first, with the total last."""
    counts: dict[str, Counter[str]] = {}
    for module in package:
        room = module.path.parts[0] if len(module.path.parts) > 1 else "."
        counts.setdefault(room, Counter()).update(module.kinds)
    total = sum(counts.values(), Counter())
    yield _line("lines", (*KINDS, "total"))
    for room, count in sorted(counts.items(), key=lambda item: -item[1].total()):
        yield _line(room, [f"{count[kind]:,}" for kind in KINDS] + [f"{count.total():,}"])
    yield _line("total", [f"{total[kind]:,}" for kind in KINDS] + [f"{total.total():,}"])


def column(package: tuple[Module, ...]) -> dict[str, str]:
    """Return what the table says of a package, by row."""
    sizes = [len(module.kinds) for module in package]
    lengths = [length for module in package for length in module.lengths]
    docstrings = sum(module.kinds.count("docstring") for module in package)
    many = sum(count >= MANY_PARAMETERS for module in package for count in module.parameters)
    rules = _rule_sizes(package)
    thousands = sum(sizes) / 1000
    return {
        "lines": f"{sum(sizes):,}",
        "modules": f"{len(sizes):,}",
        "median module": f"{statistics.median(sizes):g}",
        f"modules over {LONG_MODULE} lines": f"{sum(size > LONG_MODULE for size in sizes)}",
        "median function": f"{statistics.median(lengths):g}",
        "95th percentile function": f"{statistics.quantiles(lengths, n=20)[-1]:.0f}",
        "median rule module": f"{statistics.median(rules):g}" if rules else "-",
        "docstrings, % of lines": f"{docstrings / thousands / 10:.1f}",
        "broad excepts per 1,000": f"{sum(module.broad for module in package) / thousands:.2f}",
        f"{MANY_PARAMETERS} or more parameters": f"{many}",
        "the same per 1,000": f"{many / thousands:.2f}",
    }


def _rule_sizes(package: tuple[Module, ...]) -> list[int]:
    folders: dict[tuple[str, ...], list[int]] = {}
    for module in package:
        parts = module.path.parent.parts
        if "rules" in parts and module.path.name != "__init__.py":
            folder = parts[: parts.index("rules") + 1]
            folders.setdefault(folder, []).append(len(module.kinds))
    return max(folders.values(), key=len, default=[])


def _line(title: str, cells: list[str] | tuple[str, ...]) -> str:
    return f"{title:<26}" + "".join(f"{cell:>11}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="+", metavar="[NAME=]FOLDER")
    packages: dict[str, tuple[Module, ...]] = {}
    for text in parser.parse_args().packages:
        name, _, folder = text.rpartition("=")
        packages[name or Path(folder).name] = modules(Path(folder))
    print("\n".join(rooms(next(iter(packages.values())))), end="\n\n")
    columns = [column(package) for package in packages.values()]
    print(_line("", list(packages)))
    for row in columns[0]:
        print(_line(row, [cells[row] for cells in columns]))


if __name__ == "__main__":
    main()
