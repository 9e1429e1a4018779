"""Follow dotted names through the imports and aliases of a project's modules."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from jaxresid.linter.resolve.contents import Contents
from jaxresid.linter.resolve.names import Names
from jaxresid.linter.resolve.project_module import ProjectModule

# Never part of the project, so not looked up in it.
_LIBRARIES = frozenset(
    """
    jax jaxlib flax haiku equinox haliax keras optax numpy scipy functools typing collections os sys
    math re abc dataclasses itertools torch tensorflow chex einops contextlib logging time warnings
    """.split()
)
_MAX_ALIASES = 5
# What rules ask about is defined in modules that mention one of these.
_ASKED_ABOUT = (b"checkpoint", b"remat")


class ModuleNames:
    """The names that a project's modules give to what they import and define."""

    def __init__(
        self,
        modules: tuple[ProjectModule, ...],
        contents: Contents,
        tree_of: Callable[[Path], ast.Module | None],
    ) -> None:
        self._modules = modules
        self._contents = contents
        self._tree_of = tree_of
        self._by_name = {m.name: m for m in modules}
        self.by_path = {m.path: m for m in modules}
        self._outlines: dict[Path, Mapping[str, frozenset[str]] | None] = {}
        self._canonical: dict[tuple[str, Path | None], str] = {}

    @cached_property
    def _top_level(self) -> frozenset[str]:
        return frozenset(
            part
            for m in self._modules
            for part in (m.name.partition(".")[0], m.path.stem, m.path.parent.name)
        )

    @cached_property
    def askable(self) -> dict[str, frozenset[str]]:
        """What modules that mention a checkpoint may define, by their dotted names."""
        return {
            name: self._contents.words(m.path).definable
            for name, m in self._by_name.items()
            if any(word in self._contents.content(m.path) for word in _ASKED_ABOUT)
        }

    def canonical(self, qualname: str, importer: Path | None) -> str:
        """Return the name under which something is defined, as `Project.canonical`."""
        if is_library(qualname) or qualname.partition(".")[0] not in self._top_level:
            return qualname
        key = qualname, importer
        if key not in self._canonical:
            self._canonical[key] = self._follow(qualname, importer, _MAX_ALIASES)
        return self._canonical[key]

    def _follow(self, qualname: str, importer: Path | None, left: int) -> str:
        found = self.locate(qualname, importer)
        if found is None or not left:
            return qualname
        module, attribute = found
        name = f"{module.name}.{attribute}"
        if "." in attribute:
            return name
        words, word = self._contents.words(module.path), attribute.encode("utf-8", "surrogatepass")
        open_to_doubt = word in words.content and not words.defines(word)
        known = self._targets(module) if open_to_doubt else None
        targets = known.get(attribute, frozenset()) if known is not None else frozenset()
        target = next(iter(targets)) if len(targets) == 1 else ""
        if target and target != qualname:
            if is_library(target):
                return target
            return self._follow(target, module.path, left - 1)
        return name

    def locate(self, qualname: str, importer: Path | None) -> tuple[ProjectModule, str] | None:
        """Return the module that a dotted name reaches into, and the rest of the name."""
        head, _, rest = qualname.rpartition(".")
        while head:
            module = self._by_name.get(head) or self._script_neighbour(head, importer)
            if module is not None:
                return module, rest
            head, _, last = head.rpartition(".")
            rest = f"{last}.{rest}"
        return None

    def _script_neighbour(self, name: str, importer: Path | None) -> ProjectModule | None:
        """Return a module imported by its bare name from a script in the same directory."""
        if importer is None:
            return None
        base = importer.parent.joinpath(*name.split("."))
        return self.by_path.get(base.with_suffix(".py")) or self.by_path.get(base / "__init__.py")

    def _targets(self, module: ProjectModule) -> Mapping[str, frozenset[str]] | None:
        """Return what the names of a module stand for at its top level: "" for what it defines."""
        path = module.path
        if path not in self._outlines:
            tree = self._tree_of(path)
            self._outlines[path] = (
                _top_level_targets(Names(tree, module.name, module.is_package, bodies=False))
                if tree is not None
                else None
            )
        return self._outlines[path]


def is_library(qualname: str) -> bool:
    """Return whether a dotted name is one of the libraries that are never part of a project."""
    return qualname.partition(".")[0] in _LIBRARIES


def _top_level_targets(names: Names) -> dict[str, frozenset[str]]:
    found = {}
    for name, bindings in names.root.bindings.items():
        targets: set[str] = set()
        for binding in bindings:
            if binding.kind == "import":
                targets.add(binding.qualname)
            elif binding.kind == "assign" and isinstance(binding.value, (ast.Name, ast.Attribute)):
                targets.update(names.qualnames(binding.value) or [""])
            else:
                targets.add("")
        found[name] = frozenset(targets)
    return found
