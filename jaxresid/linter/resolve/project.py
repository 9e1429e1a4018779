"""Index what other modules of the project do with the functions of one.

Lazy throughout: a file of the project is parsed only when a question reaches it, and a question
reaches it only if its bytes mention the name that the question is about. Files ask through a
`ProjectView`, which notes what the answers were made from.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path

from jaxresid.linter.resolve.contents import Contents, Question
from jaxresid.linter.resolve.context import is_rule
from jaxresid.linter.resolve.facts import Facts
from jaxresid.linter.resolve.names import Names, imported_from
from jaxresid.linter.resolve.notes import Dependencies, Notes
from jaxresid.linter.resolve.project_module import ProjectModule
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
_NAMING = Question("checkpoint_name")
_POLICIES = (Question("these_names"), Question("names_but_these"))
# How many bytes of source the facts are kept of; the trees of more would fill the memory.
_MAX_KEPT_NBYTES = 1_000_000


class Project:
    """The modules of one project.

    Args:
      modules: lists all its Python files; called when the first question comes.
      complete: whether these are known to be all: a rule about what no file does may then report.
      contents: bytes of files that were read before, or that replace what is in the file, such as
        an editor's buffer.
      target_jax: the jax that the code is written for; None for the newest.
      display_paths: how the path of a file is shown to the user.
    """

    def __init__(
        self,
        modules: Callable[[], Iterable[ProjectModule]] = tuple,
        *,
        complete: bool = False,
        contents: dict[Path, bytes] | None = None,
        target_jax: tuple[int, int] | None = None,
        display_paths: dict[Path, str] | None = None,
    ) -> None:
        self._list = modules
        self._complete = complete
        self._known = contents or {}
        self._shown = display_paths or {}
        self._target_jax = target_jax
        self._facts: dict[Path, Facts | None] = {}
        self._outlines: dict[Path, Names | None] = {}
        self._kept_nbytes = 0
        self._parsing: dict[Path, bool] = {}
        self._notes: dict[Path, Notes] = {}
        self._strings: dict[str, int] = {}

    @cached_property
    def modules(self) -> tuple[ProjectModule, ...]:
        """The modules, in the order in which they were listed."""
        return tuple(self._list())

    @cached_property
    def contents(self) -> Contents:
        """The bytes of the modules."""
        return Contents([m.path for m in self.modules], self._known)

    @cached_property
    def by_name(self) -> dict[str, ProjectModule]:
        """The modules by dotted name, packages by their own."""
        return {m.name: m for m in self.modules}

    @cached_property
    def _by_path(self) -> dict[Path, ProjectModule]:
        return {m.path: m for m in self.modules}

    def module_at(self, path: Path) -> ProjectModule | None:
        """Return the module that a file is, None if it is not in the project."""
        return self._by_path.get(path)

    def view(self) -> ProjectView:
        """Return the project as a file that is linted sees it, with nothing noted yet."""
        return ProjectView(self, Notes())

    def dependencies(self, notes: Notes) -> Dependencies:
        """Return what answers with these notes depend on: as it is now."""
        return notes.dependencies(self._notes, self.contents)

    def _parsed(self, module: ProjectModule) -> tuple[SourceText, ast.Module] | None:
        shown = self._shown.get(module.path, str(module.path))
        try:
            source = SourceText.decode(self.contents.content(module.path), shown)
            return source, parse(source)
        except (UndecodableError, UnparsableError):
            return None

    def facts(self, module: ProjectModule) -> Facts | None:
        """Return the facts of a module of the project, None where it does not parse."""
        path = module.path
        if path in self._facts:
            self._facts[path] = self._facts.pop(path)  # the last one used is the last to go
            return self._facts[path]
        parsed = self._parsed(module)
        if parsed is None:
            self._facts[path] = None
            return None
        source, tree = parsed
        facts = Facts(
            source,
            tree,
            module=module.name,
            is_package=module.is_package,
            path=path,
            project=ProjectView(self, self._notes.setdefault(path, Notes())),
            target_jax=self._target_jax,
            remote=True,
        )
        self._kept_nbytes += len(source.text)
        while self._kept_nbytes > _MAX_KEPT_NBYTES and self._facts:
            oldest = self._facts.pop(next(iter(self._facts)))
            self._kept_nbytes -= len(oldest.source.text) if oldest is not None else 0
        self._facts[path] = facts
        return facts

    def _parses(self, path: Path) -> bool:
        if path not in self._parsing:
            facts = self._facts.get(path)
            self._parsing[path] = facts is not None or self._parsed(self._by_path[path]) is not None
        return self._parsing[path]

    def _outline(self, module: ProjectModule) -> Names | None:
        """Return the names of a module without the bodies of its functions."""
        path = module.path
        if path not in self._outlines:
            parsed = self._parsed(module)
            if parsed is None:
                self._outlines[path] = None
            else:
                tree = parsed[1]
                _empty_functions(tree)
                self._outlines[path] = Names(tree, module.name, module.is_package)
        return self._outlines[path]

    # -- names across modules ----------------------------------------------------------------

    @cached_property
    def _top_level_names(self) -> frozenset[str]:
        """The first components of what can be imported from the project."""
        found = {m.name.partition(".")[0] for m in self.modules}
        return frozenset(
            found | {m.path.stem for m in self.modules} | {m.path.parent.name for m in self.modules}
        )

    def canonical(self, qualname: str, importer: Path | None, notes: Notes) -> str:
        """Return the name under which something is defined, as `ProjectView.canonical`."""
        top = qualname.partition(".")[0]
        if top in _LIBRARIES or top not in self._top_level_names:
            return qualname
        return self._follow(qualname, importer, _MAX_ALIASES, notes)

    def _follow(self, qualname: str, importer: Path | None, left: int, notes: Notes) -> str:
        found = self._locate(qualname, importer)
        if found is None or not left:
            return qualname
        module, attribute = found
        name = f"{module.name}.{attribute}"
        if "." in attribute:
            return name
        notes.files.add(module.path)
        words, word = self.contents.words(module.path), attribute.encode("utf-8", "surrogatepass")
        open_to_doubt = word in words.content and not words.defines(word)
        names = self._outline(module) if open_to_doubt else None
        if names is None:
            return name
        targets = set()
        for binding in names.root.bindings.get(attribute, []):
            if binding.kind == "import":
                targets.add(binding.qualname)
            elif binding.kind == "assign" and isinstance(binding.value, (ast.Name, ast.Attribute)):
                targets.update(names.qualnames(binding.value) or [""])
            else:
                targets.add("")
        if len(targets) == 1 and (target := targets.pop()) and target != qualname:
            if target.partition(".")[0] in _LIBRARIES:
                return target
            return self._follow(target, module.path, left - 1, notes)
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

    def remote_uses(self, qualname: str, home: Path | None, notes: Notes) -> Iterable[RemoteUse]:
        """Yield what the other modules do with a function of one, as `ProjectView.remote_uses`."""
        home_name, _, last = qualname.rpartition(".")
        question = Question(last, home_name.rpartition(".")[2] or home_name)
        notes.ask(question, contents=True)
        for path in self.contents.answer(question):
            if path == home or not self._may_load(path, question, qualname, notes):
                continue
            facts = self._facts_of(path, notes)
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

    def _may_load(self, path: Path, question: Question, qualname: str, notes: Notes) -> bool:
        """Return whether a file may read something of another one, as far as its imports tell."""
        words, word = self.contents.words(path), question.word.encode("utf-8", "surrogatepass")
        if question.parent is not None and words.spells(word, question.parent):
            return True
        module = self._by_path[path]
        package = module.name if module.is_package else module.name.rpartition(".")[0]
        for origin in words.imported.get(word, ()):
            text = origin.decode("utf-8", "surrogatepass")
            name = text.lstrip(".")
            base = imported_from(package, len(text) - len(name), name)
            full = f"{base}.{question.word}" if base else question.word
            if self.canonical(full, path, notes) == qualname:
                return True
        return False

    def _facts_of(self, path: Path, notes: Notes) -> Facts | None:
        """Return the facts of the module that a file is; what they are made from is noted."""
        facts = self.facts(self._by_path[path])
        notes.facts.add(path)
        return facts

    # -- checkpoint names across modules -----------------------------------------------------

    @cached_property
    def complete(self) -> bool:
        """Whether every project file is known and parses, as far as it mentions names."""
        return self._complete and all(self._parses(path) for path in self.contents.answer(_NAMING))

    @cached_property
    def naming_facts(self) -> tuple[Facts, ...]:
        """The facts of the modules that mention `checkpoint_name`."""
        return self._facts_that(_NAMING)

    @cached_property
    def policy_facts(self) -> tuple[Facts, ...]:
        """The facts of the modules that mention a policy over names."""
        return self._facts_that(*_POLICIES)

    def _facts_that(self, *questions: Question) -> tuple[Facts, ...]:
        paths = {path for q in questions for path in self.contents.answer(q)}
        found = (self.facts(m) for m in self.modules if m.path in paths)
        return tuple(f for f in found if f is not None)

    def strings(self, value: str) -> int:
        """Return how many times a string is a literal, as `ProjectView.strings`."""
        if value not in self._strings:
            self._strings[value] = self._count_strings(value)
        return self._strings[value]

    def _count_strings(self, value: str) -> int:
        count = 0
        for path in self.contents.answer(Question(value)):
            module = self._by_path[path]
            facts = self._facts.get(path)
            parsed = (facts.source, facts.names.tree) if facts is not None else self._parsed(module)
            if parsed is None:
                return 1_000_000
            count += sum(
                isinstance(n, ast.Constant) and n.value == value for n in ast.walk(parsed[1])
            )
        return count


class ProjectView:
    """A project as one of its files sees it.

    Args:
      project: the project.
      notes: where it is noted what the answers were made from.
    """

    def __init__(self, project: Project, notes: Notes) -> None:
        self._project = project
        self.notes = notes
        self._canonical: dict[tuple[str, Path | None], str] = {}
        self._remote: dict[tuple[str, Path | None], tuple[RemoteUse, ...]] = {}

    def module_at(self, path: Path) -> ProjectModule | None:
        """Return the module that a file is, None if it is not in the project."""
        return self._project.module_at(path)

    def canonical(self, qualname: str, importer: Path | None = None) -> str:
        """Return the name under which something is defined.

        The name is followed through the project's imports and module-level aliases: `mylib.remat`
        gives `jax.checkpoint`.

        Args:
          qualname: the dotted name.
          importer: the file that uses the name; it may import modules from its own directory.
        """
        key = (qualname, importer)
        if key not in self._canonical:
            self._canonical[key] = self._project.canonical(qualname, importer, self.notes)
        return self._canonical[key]

    def remote_uses(self, qualname: str, home: Path | None = None) -> tuple[RemoteUse, ...]:
        """Return what the other modules do with a function of one.

        Args:
          qualname: the dotted name of the function.
          home: the file that defines it.
        """
        key = (qualname, home)
        if key not in self._remote:
            self._remote[key] = ()
            self._remote[key] = tuple(self._project.remote_uses(qualname, home, self.notes))
        return self._remote[key]

    @property
    def complete(self) -> bool:
        """Return whether every project file is known and parses, as far as it mentions names."""
        self.notes.ask(_NAMING, contents=True)
        return self._project.complete

    @property
    def defined_names(self) -> frozenset[str]:
        """The literal names given to `checkpoint_name` anywhere."""
        return frozenset(n.name for f in self.naming_facts for n in f.named if n.name is not None)

    @property
    def has_dynamic_names(self) -> bool:
        """Return whether some `checkpoint_name` gets a computed name."""
        return any(n.name is None for f in self.naming_facts for n in f.named)

    @property
    def naming_facts(self) -> tuple[Facts, ...]:
        """The facts of the modules that mention `checkpoint_name`."""
        return self._noted(self._project.naming_facts, _NAMING)

    @property
    def policy_facts(self) -> tuple[Facts, ...]:
        """The facts of the modules that mention a policy over names."""
        return self._noted(self._project.policy_facts, *_POLICIES)

    def _noted(self, facts: tuple[Facts, ...], *questions: Question) -> tuple[Facts, ...]:
        for question in questions:
            self.notes.ask(question, contents=True)
        self.notes.facts.update(f.path for f in facts if f.path is not None)
        return facts

    def strings(self, value: str) -> int:
        """Return how many times a string is a literal in the project's modules.

        f-strings are not counted. The number is huge where a module that contains it does not
        parse.
        """
        self.notes.ask(Question(value), contents=True)
        return self._project.strings(value)


def _is_loop(api: object) -> bool:
    return getattr(api, "kind", "branch") != "branch"


def _empty_functions(tree: ast.Module) -> None:
    """Take the bodies out of a module's functions; methods keep theirs, as they set attributes."""
    left: list[ast.AST] = [tree]
    while left:
        for child in ast.iter_child_nodes(left.pop()):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                child.body = []
            elif isinstance(
                child, (ast.stmt, ast.excepthandler, ast.match_case)
            ) and not isinstance(child, ast.ClassDef):
                left.append(child)
