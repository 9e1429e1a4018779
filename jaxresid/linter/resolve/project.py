"""Index what other modules of the project do with the functions of one.

Lazy throughout: a file of the project is parsed only when a question reaches it, and a question
reaches it only if its bytes mention the name that the question is about.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from jaxresid.linter.resolve.contents import Contents, Question
from jaxresid.linter.resolve.facts import Facts
from jaxresid.linter.resolve.module_names import ModuleNames, is_library
from jaxresid.linter.resolve.names import Binding, Definition, imported_from
from jaxresid.linter.resolve.neighbours import Neighbours, ParsedModule, Remembered
from jaxresid.linter.resolve.project_module import ProjectModule
from jaxresid.linter.resolve.uses import RemoteUse
from jaxresid.linter.text.source import SourceText, UndecodableError
from jaxresid.linter.text.syntax import UnparsableError, parse

_T = TypeVar("_T")
_NAMING = Question("checkpoint_name")
_POLICIES = (Question("these_names"), Question("names_but_these"))
# Where a file that does not parse may hold a string, it may do so any number of times.
_MANY = 1_000_000


class Project:
    """The modules of one project.

    Args:
      modules: lists all its Python files; called when the first question comes.
      complete: whether these are known to be all: a rule about what no file does may then report.
      contents: bytes of files that were read before, or that replace what is in the file, such as
        an editor's buffer.
      remembered: what is known of files from a run before this one.
    """

    def __init__(
        self,
        modules: Callable[[], Iterable[ProjectModule]] = tuple,
        *,
        complete: bool = False,
        contents: dict[Path, bytes] | None = None,
        target_jax: tuple[int, int] | None = None,
        display_paths: dict[Path, str] | None = None,
        remembered: Remembered | None = None,
    ) -> None:
        self._list = modules
        self._complete = complete
        self._known = contents or {}
        self._shown = display_paths or {}
        self._remembered = remembered
        self._target_jax = target_jax
        self._neighbours = Neighbours(self._parse, self._facts, lambda: self.names.askable)
        self._remote: dict[tuple[str, Path | None], tuple[RemoteUse, ...]] = {}
        self._strings: dict[str, int] = {}
        self._mentioning: dict[tuple[Question, ...], tuple[Path, ...]] = {}

    @cached_property
    def modules(self) -> tuple[ProjectModule, ...]:
        """The modules, in the order in which they were listed."""
        return tuple(self._list())

    @cached_property
    def contents(self) -> Contents:
        """The bytes of the modules."""
        words = self._remembered.words if self._remembered is not None else None
        return Contents([m.path for m in self.modules], self._known, words)

    @cached_property
    def names(self) -> ModuleNames:
        """What the names of the modules stand for."""
        return ModuleNames(self.modules, self.contents, self._tree)

    def module_at(self, path: Path) -> ProjectModule | None:
        """Return the module that a file is, None if it is not in the project."""
        return self.names.by_path.get(path)

    # -- the modules as others see them ------------------------------------------------------

    def _parse(self, path: Path) -> ParsedModule | None:
        content = self.contents.content(path)
        known = self._remembered.find(path, content) if self._remembered is not None else None
        if known is not None:
            return known
        shown = self._shown.get(path, str(path))
        try:
            source = SourceText.decode(content, shown)
            parsed = ParsedModule(source, parse(source), self.names.by_path[path])
        except (UndecodableError, UnparsableError):
            return None
        if self._remembered is not None:
            self._remembered.keep(path, content, parsed)
        return parsed

    def _tree(self, path: Path) -> ast.Module | None:
        parsed = self._neighbours.parsed(path)
        return parsed.tree if parsed is not None else None

    def _facts(self, parsed: ParsedModule) -> Facts:
        return Facts(
            parsed.source,
            parsed.tree,
            names=parsed.names,
            path=parsed.module.path,
            project=self,
            target_jax=self._target_jax,
            remote=True,
        )

    def parsed(self, path: Path, text: str) -> ParsedModule | None:
        """Return a module of the project, None unless it is one, has this text and parses."""
        parsed = self._neighbours.parsed(path) if path in self.names.by_path else None
        return parsed if parsed is not None and parsed.source.text == text else None

    def facts(self, module: ProjectModule) -> Facts | None:
        """Return the facts of a module of the project, None where it does not parse."""
        return self._neighbours.facts(module.path)

    def canonical(self, qualname: str, importer: Path | None = None) -> str:
        """Return the name under which something is defined.

        The name is followed through the project's imports and module-level aliases: `mylib.remat`
        gives `jax.checkpoint`.

        Args:
          importer: the file that uses the name; it may import modules from its own directory.
        """
        return self.names.canonical(qualname, importer)

    def definition(
        self, qualname: str, importer: Path | None = None
    ) -> tuple[Facts, Definition] | None:
        """Return the function or class that a name of another module is, with that one's facts.

        None is returned for what is not at the top level of a module of the project, or is bound
        there more than once.
        """
        located = self.names.locate(self.names.canonical(qualname, importer), importer)
        if located is None or is_library(located[0].name):
            return None
        facts = self._neighbours.facts(located[0].path)
        match facts.names.root.bindings.get(located[1], []) if facts is not None else []:
            case [Binding(node=ast.FunctionDef() | ast.ClassDef() as node)]:
                assert facts is not None
                return facts, node
        return None

    def remote_uses(self, qualname: str, home: Path | None = None) -> tuple[RemoteUse, ...]:
        """Return what the other modules do with a function of one."""
        key = (qualname, home)
        if key not in self._remote:
            self._remote[key] = tuple(self._remote_uses(qualname, home))
        return self._remote[key]

    def _remote_uses(self, qualname: str, home: Path | None) -> Iterator[RemoteUse]:
        home_name, _, last = qualname.rpartition(".")
        question = Question(last, home_name.rpartition(".")[2] or home_name)
        for path in self.contents.answer(question):
            if path != home and self._may_load(path, question, qualname):
                yield from self._neighbours.uses(path, qualname)

    def _may_load(self, path: Path, question: Question, qualname: str) -> bool:
        """Return whether a file may read something of another one, as far as its imports tell."""
        words, word = self.contents.words(path), question.word.encode("utf-8", "surrogatepass")
        if question.parent is not None and words.spells(word, question.parent):
            return True
        module = self.names.by_path[path]
        package = module.name if module.is_package else module.name.rpartition(".")[0]
        for origin in words.imported.get(word, ()):
            text = origin.decode("utf-8", "surrogatepass")
            name = text.lstrip(".")
            base = imported_from(package, len(text) - len(name), name)
            full = f"{base}.{question.word}" if base else question.word
            if self.names.canonical(full, path) == qualname:
                return True
        return False

    # -- checkpoint names across modules -----------------------------------------------------

    @cached_property
    def complete(self) -> bool:
        """Whether every project file is known and parses, as far as it mentions names."""
        naming = self._mentions((_NAMING,))
        return self._complete and all(map(self._neighbours.parses, naming))

    def _mentions(self, questions: tuple[Question, ...]) -> tuple[Path, ...]:
        if questions not in self._mentioning:
            paths = {
                path
                for question in questions
                for path in self.contents.answer(question)
                if self.contents.words(path).is_in_code(question.word)
            }
            found = tuple(m.path for m in self.modules if m.path in paths)
            self._mentioning[questions] = found
        return self._mentioning[questions]

    def of_naming(self, make: Callable[[Facts], _T]) -> tuple[_T, ...]:
        """Return what a function makes of each module that mentions `checkpoint_name`."""
        return self._made((_NAMING,), make)

    def of_policies(self, make: Callable[[Facts], _T]) -> tuple[_T, ...]:
        """Return what a function makes of each module that mentions a policy over names."""
        return self._made(_POLICIES, make)

    def _made(self, questions: tuple[Question, ...], make: Callable[[Facts], _T]) -> tuple[_T, ...]:
        found = (self._neighbours.made(path, make) for path in self._mentions(questions))
        return tuple(made for made in found if made is not None)

    def strings(self, value: str) -> int:
        """Return how many times a string is a literal in the project's modules.

        f-strings are not counted. The number is huge where a module that contains it does not
        parse.
        """
        if value not in self._strings:
            self._strings[value] = self._count_strings(value)
        return self._strings[value]

    def _count_strings(self, value: str) -> int:
        count = 0
        for path in self.contents.answer(Question(value)):
            if not self.contents.words(path).may_quote(value):
                continue
            occurrences = self._neighbours.strings(path, value)
            if occurrences is None:
                return _MANY
            count += occurrences
        return count
