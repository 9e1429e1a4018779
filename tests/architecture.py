"""The rooms of the package and the arrows between them.

    python tests/architecture.py [--rooms]

A room is a folder of `jaxresid` (one of a package's own folders too), or a module that stands
beside folders. Prints how many there are and their arrows, the circles between rooms and between
modules, the longest module, and the most crowded folder; `--rooms` adds each room with what it
imports. Imports that only type checkers see count; imports inside functions count.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "jaxresid"


def module_names() -> dict[str, Path]:
    """Return the dotted name of each module below `jaxresid`, a package's own as the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def arrows(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    return {name: set(_imported(path, modules)) - {name} for name, path in modules.items()}


def _imported(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            is_module = [name.removeprefix("jaxresid.") in modules for name in inner]
            names = [n for n, known in zip(inner, is_module, strict=True) if known]
            names += [] if all(is_module) else [node.module]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "jaxresid" and rest in modules:
                yield rest


def room_of(module: str, modules: Mapping[str, Path]) -> str:
    """Return the folder that a module stands in, `inspector/memory`; its own name where folders
    stand beside it."""
    path = modules[module]
    folder = path.parent
    has_folders = any((child / "__init__.py").exists() for child in folder.iterdir())
    if path.name == "__init__.py" and folder != PACKAGE:
        folder, has_folders = (folder, False) if not has_folders else (folder, True)
    if has_folders or folder == PACKAGE:
        return module.replace(".", "/") or "__init__"
    return folder.relative_to(PACKAGE).as_posix()


def between_rooms(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return the rooms that each room imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, imported in arrows(modules).items():
        room = room_of(module, modules)
        found[room] |= {room_of(other, modules) for other in imported} - {room}
    return dict(found)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Rooms, arrows and circles of the package.")
    parser.add_argument("--rooms", action="store_true", help="print each room and what it imports")
    options = parser.parse_args()
    modules = module_names()
    graph, rooms = arrows(modules), between_rooms(modules)
    if options.rooms:
        for room, imported in sorted(rooms.items()):
            print(f"{room:32} {' '.join(sorted(imported))}")
    print(f"{len(modules)} modules, {sum(map(len, graph.values()))} arrows between them")
    print(f"{len(rooms)} rooms, {sum(map(len, rooms.values()))} arrows between them")
    for kind, each in (("rooms", circles(rooms)), ("modules", circles(graph))):
        print(f"{len(each)} circles of {kind}")
        for group in each:
            print(f"  {' '.join(group)}")
    longest = max(modules.values(), key=lambda path: len(path.read_text().splitlines()))
    lines = len(longest.read_text().splitlines())
    print(f"longest module: {longest.relative_to(PACKAGE)}, {lines} lines")
    folders = {path.parent for path in modules.values()}
    crowded = max(folders, key=lambda folder: len(list(folder.glob("*.py"))))
    count = len(list(crowded.glob("*.py")))
    print(f"most crowded folder: {crowded.relative_to(PACKAGE.parent)}, {count} modules")


if __name__ == "__main__":
    main()
