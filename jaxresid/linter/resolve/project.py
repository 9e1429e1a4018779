"""Index what other modules of the project do with the functions of one.

Lazy throughout: a file of the project is parsed only when a question reaches it, and a question
reaches it only if its bytes mention the name that the question is about.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jaxresid.linter.resolve.context import is_rule
from jaxresid.linter.resolve.facts import Facts
from jaxresid.linter.resolve.stages import derivative_name
from jaxresid.linter.resolve.uses import RemoteUse
from jaxresid.linter.text.source import SourceText, UndecodableError
from jaxresid.linter.text.syntax import UnparsableError, parse

# Never part of the project, so not looked up in it.
_LIBRARIES = frozenset(
    """
    jax jaxlib flax haiku equinox haliax keras optax numpy scipy functools typing collections os sys
    math re abc dataclasses itertools torch tensorflow chex einops contextlib logging time warnings
    """.split()
)
_MAX_ALIASES = 5
# An import statement with its names, over lines where brackets or backslashes continue it.
_IMPORT = re.compile(
    rb"^[ \t]*(?:from\b[^\n]*?\bimport\b|import\b)(?:[^\n(\\]|\\\r?\n)*(?:\([^)]*\))?", re.MULTILINE
)
_WORD = re.compile(rb"\w+")


@dataclass(frozen=True, slots=True)
class ProjectModule:
    """A file of the project under its dotted name."""

    path: Path
    name: str

    @property
    def is_package(self) -> bool:
        """Return whether the file is an `__init__.py`."""
        return self.path.stem == "__init__"


class Project:
    """The modules of one project.

    Args:
      modules: lists all its Python files; called when the first question comes.
      complete: whether these are known to be all: a rule about what no file does may then report.
      overlay: contents that replace files, such as an editor's buffer.
      target_jax: the jax that the code is written for; None for the newest.
      shown: how the path of a file is shown to the user.
    """

    def __init__(
        self,
        modules: Callable[[], Iterable[ProjectModule]] = tuple,
        *,
        complete: bool = False,
        overlay: dict[Path, bytes] | None = None,
        target_jax: tuple[int, int] | None = None,
        display_paths: dict[Path, str] | None = None,
    ) -> None:
        self._list = modules
        self._complete = complete
        self._overlay = overlay or {}
        self._shown = display_paths or {}
        self._target_jax = target_jax
        self._bytes: dict[Path, bytes] = {}
        self._facts: dict[Path, Facts | None] = {}
        self._canonical: dict[tuple[str, Path | None], str] = {}
        self._imports: dict[Path, frozenset[bytes]] = {}
        self._remote: dict[tuple[str, Path], tuple[RemoteUse, ...]] = {}

    @cached_property
    def _modules(self) -> tuple[ProjectModule, ...]:
        return tuple(self._list())

    @cached_property
    def by_name(self) -> dict[str, ProjectModule]:
        """The modules by dotted name, packages by their own."""
        return {m.name: m for m in self._modules}

    @cached_property
    def _by_path(self) -> dict[Path, ProjectModule]:
        return {m.path: m for m in self._modules}

    def module_at(self, path: Path) -> ProjectModule | None:
        """Return the module that a file is, None if it is not in the project."""
        return self._by_path.get(path)

    def content(self, path: Path) -> bytes:
        """Return a file's bytes; empty where it cannot be read."""
        if path in self._overlay:
            return self._overlay[path]
        if path not in self._bytes:
            try:
                self._bytes[path] = path.read_bytes()
            except OSError:
                self._bytes[path] = b""
        return self._bytes[path]

    def facts(self, module: ProjectModule) -> Facts | None:
        """Return the facts of a module of the project, None where it does not parse."""
        if module.path not in self._facts:
            try:
                shown = self._shown.get(module.path, str(module.path))
                source = SourceText.decode(self.content(module.path), shown)
                tree = parse(source)
            except (UndecodableError, UnparsableError):
                self._facts[module.path] = None
            else:
                self._facts[module.path] = Facts(
                    source,
                    tree,
                    module=module.name,
                    is_package=module.is_package,
                    path=module.path,
                    project=self,
                    target_jax=self._target_jax,
                    remote=True,
                )
        return self._facts[module.path]

    # -- names across modules ----------------------------------------------------------------

    @cached_property
    def _top_level_names(self) -> frozenset[str]:
        """The first components of what can be imported from the project."""
        found = {m.name.partition(".")[0] for m in self._modules}
        return frozenset(
            found
            | {m.path.stem for m in self._modules}
            | {m.path.parent.name for m in self._modules}
        )

    def canonical(self, qualname: str, importer: Path | None = None) -> str:
        """Return the name under which something is defined.

        The name is followed through the project's imports and module-level aliases: `mylib.remat`
        gives `jax.checkpoint`.

        Args:
          qualname: the dotted name.
          importer: the file that uses the name; it may import modules from its own directory.
        """
        top = qualname.partition(".")[0]
        if top in _LIBRARIES or top not in self._top_level_names:
            return qualname
        key = (qualname, importer)
        if key not in self._canonical:
            self._canonical[key] = qualname
            self._canonical[key] = self._follow(qualname, importer, _MAX_ALIASES)
        return self._canonical[key]

    def _follow(self, qualname: str, importer: Path | None, left: int) -> str:
        found = self._locate(qualname, importer)
        if found is None or not left:
            return qualname
        module, attribute = found
        name = f"{module.name}.{attribute}"
        facts = self.facts(module) if attribute.encode() in self.content(module.path) else None
        if facts is None or "." in attribute:
            return name
        bindings = facts.names.root.bindings.get(attribute, [])
        targets = set()
        for binding in bindings:
            if binding.kind == "import":
                targets.add(binding.qualname)
            elif binding.kind == "assign" and isinstance(binding.value, (ast.Name, ast.Attribute)):
                targets.update(facts.names.qualnames(binding.value) or [""])
            else:
                targets.add("")
        if len(targets) == 1 and (target := targets.pop()) and target != qualname:
            if target.partition(".")[0] in _LIBRARIES:
                return target
            return self._follow(target, module.path, left - 1)
        return name

    def _locate(self, qualname: str, importer: Path | None) -> tuple[ProjectModule, str] | None:
        """Return the module that a dotted name reaches into, and the rest of the name."""
        head, _, rest = qualname.rpartition(".")
        while head:
            module = self.by_name.get(head) or self._script_neighbour(head, importer)
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
        return self._by_path.get(base.with_suffix(".py")) or self._by_path.get(base / "__init__.py")

    def remote_uses(self, qualname: str, home: Path | None = None) -> tuple[RemoteUse, ...]:
        """Return what the other modules do with a function of one.

        Args:
          qualname: the dotted name of the function.
          home: the file that defines it.
        """
        key = (qualname, home or Path())
        if key not in self._remote:
            self._remote[key] = ()
            self._remote[key] = tuple(self._find_remote(qualname, home))
        return self._remote[key]

    def _find_remote(self, qualname: str, home: Path | None) -> Iterable[RemoteUse]:
        home_name, _, last = qualname.rpartition(".")
        parent = home_name.rpartition(".")[2] or home_name
        for module in self._modules:
            if module.path == home or not self._may_reach(module.path, parent, last):
                continue
            facts = self.facts(module)
            if facts is None:
                continue
            for node in facts.loads_of_external(qualname):
                for use in facts.flow(node):
                    context = facts.context(use.node)
                    yield RemoteUse(
                        use.kind,
                        derivative_name(facts, use),
                        facts.source.path,
                        facts.source.span(use.node)  # type: ignore[arg-type]
                        if hasattr(use.node, "lineno")
                        else facts.source.span(node),
                        use.mode == "forward",
                        context.loop or _is_loop(use.api),
                        bool(context.reverse),
                        is_rule(use, context),
                        use.through,
                    )

    def _may_reach(self, path: Path, parent: str, name: str) -> bool:
        """Return whether a file's bytes could name `parent.name`.

        They could if the file imports one of the two by name, or spells both in a row.
        """
        content = self.content(path)
        if name.encode() not in content:
            return False
        if path not in self._imports:
            self._imports[path] = frozenset(
                word for line in _IMPORT.findall(content) for word in _WORD.findall(line)
            )
        imported = self._imports[path]
        return (
            name.encode() in imported
            or parent.encode() in imported
            or f"{parent}.{name}".encode() in content
        )

    # -- checkpoint names across modules -----------------------------------------------------

    @property
    def complete(self) -> bool:
        """Return whether every project file is known and parses, as far as it mentions names."""
        return self._complete and all(
            self.facts(m) is not None
            for m in self._modules
            if b"checkpoint_name" in self.content(m.path)
        )

    @cached_property
    def defined_names(self) -> frozenset[str]:
        """The literal names given to `checkpoint_name` anywhere."""
        return frozenset(n.name for f in self.naming_facts for n in f.named if n.name is not None)

    @cached_property
    def has_dynamic_names(self) -> bool:
        """Return whether some `checkpoint_name` gets a computed name."""
        return any(n.name is None for f in self.naming_facts for n in f.named)

    @cached_property
    def naming_facts(self) -> tuple[Facts, ...]:
        """The facts of the modules that mention `checkpoint_name`."""
        found = (self.facts(m) for m in self._modules if b"checkpoint_name" in self.content(m.path))
        return tuple(f for f in found if f is not None)

    def strings(self, value: str) -> int:
        """Return how many times a string is a literal in the project's modules.

        f-strings are not counted. The number is huge where a module that contains it does not
        parse.
        """
        marker = value.encode()
        count = 0
        for module in self._modules:
            if marker in self.content(module.path):
                facts = self.facts(module)
                if facts is None:
                    return 1_000_000
                count += sum(
                    isinstance(n, ast.Constant) and n.value == value
                    for n in ast.walk(facts.names.tree)
                )
        return count

    @cached_property
    def policy_facts(self) -> tuple[Facts, ...]:
        """The facts of the modules that mention a policy over names."""
        found = (
            self.facts(m)
            for m in self._modules
            if b"these_names" in self.content(m.path) or b"names_but_these" in self.content(m.path)
        )
        return tuple(f for f in found if f is not None)


def _is_loop(api: object) -> bool:
    return getattr(api, "kind", "branch") != "branch"
