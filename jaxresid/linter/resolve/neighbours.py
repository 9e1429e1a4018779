"""Look into the other files of a project, each parsed once or twice, however much is asked.

The facts of a file take about a hundred times the memory of its source, so only those of the last
few files are kept. What a file does with the functions of others is written down before its facts
go.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from jaxresid.linter.resolve.alternatives import replaces_checkpoint
from jaxresid.linter.resolve.contents import FileWords
from jaxresid.linter.resolve.context import is_rule
from jaxresid.linter.resolve.facts import Facts
from jaxresid.linter.resolve.names import External, Names, Origin
from jaxresid.linter.resolve.project_module import ProjectModule
from jaxresid.linter.resolve.stages import callee_text, derivative_name
from jaxresid.linter.resolve.uses import RemoteAround, RemoteCheckpoint, RemoteUse, Use
from jaxresid.linter.text.source import SourceText
from jaxresid.linter.text.time_limit import reading
from jaxresid.linter.text.trees import walk

_T = TypeVar("_T")
# What may be asked of other modules: what each may define, by its dotted name.
Askable = Mapping[str, Set[str]]
# How many characters of source the trees are kept of.
_MAX_KEPT = 1_000_000


@dataclass
class ParsedModule:
    """A module of the project that was parsed."""

    source: SourceText
    tree: ast.Module
    module: ProjectModule

    @cached_property
    def names(self) -> Names:
        """Its names."""
        return Names(self.tree, self.module.name, self.module.is_package)


@dataclass(slots=True)
class Remembered:
    """What is known of files by their content alone, from one run of a process to the next.

    Attributes:
      parsed: their trees and names, with the content that they are of, the last used last.
    """

    words: dict[Path, FileWords] = field(default_factory=dict)
    parsed: dict[Path, tuple[bytes, ParsedModule]] = field(default_factory=dict)

    def find(self, path: Path, content: bytes) -> ParsedModule | None:
        """Return what a file with this content was parsed to, None if it was not."""
        known = self.parsed.pop(path, None)
        if known is None or known[0] != content:
            return None
        self.parsed[path] = known
        return known[1]

    def keep(self, path: Path, content: bytes, parsed: ParsedModule) -> None:
        """Keep what a file was parsed to, and let others go where that is too much."""
        self.parsed[path] = content, parsed
        while sum(len(c) for c, _ in self.parsed.values()) > _MAX_KEPT and len(self.parsed) > 1:
            del self.parsed[next(iter(self.parsed))]


@dataclass(slots=True)
class _Kept:
    """A module that was looked into, and its facts where somebody asked for them."""

    parsed: ParsedModule
    facts: Facts | None = None


@dataclass(slots=True)
class _Known:
    """What is known of a file without its tree.

    Attributes:
      uses: what it does with functions of other modules, by their dotted names.
      asked: whether anybody asked for that.
      written: whether the uses of all that is askable are there.
      strings: how often each string is a literal.
    """

    uses: dict[str, tuple[RemoteUse, ...]] = field(default_factory=dict)
    asked: bool = False
    written: bool = False
    strings: Counter[str] | None = None


class Neighbours:
    """The files of a project, as others ask for them."""

    def __init__(
        self,
        parse: Callable[[Path], ParsedModule | None],
        make: Callable[[ParsedModule], Facts],
        askable: Callable[[], Askable],
    ) -> None:
        self._parse = parse
        self._make = make
        self._askable = askable
        self._askable_words: frozenset[str] | None = None
        self._kept: dict[Path, _Kept] = {}
        self._nkept = 0
        self._known: dict[Path, _Known] = {}
        self._parses: dict[Path, bool] = {}
        self._made: dict[tuple[Path, Callable[[Facts], object]], object] = {}

    # -- trees -------------------------------------------------------------------------------

    def _load(self, path: Path) -> _Kept | None:
        kept = self._kept.pop(path, None)
        if kept is None:
            with reading(path):
                parsed = self._parse(path) if self._parses.get(path, True) else None
            self._parses[path] = parsed is not None
            if parsed is None:
                return None
            kept = _Kept(parsed)
            self._nkept += len(parsed.source.text)
        self._kept[path] = kept  # the last one used is the last to go
        while self._nkept > _MAX_KEPT and len(self._kept) > 1:
            self._let_go(next(iter(self._kept)))
        return kept

    def _let_go(self, path: Path) -> None:
        kept, known = self._kept.pop(path), self._known.get(path)
        self._nkept -= len(kept.parsed.source.text)
        if kept.facts is not None and known is not None and known.asked and not known.written:
            known.written = True
            if self._askable_words is None:
                self._askable_words = frozenset().union(*self._askable().values())
            with reading(path):
                _write_uses(known.uses, kept.facts, self._askable(), self._askable_words)

    def parsed(self, path: Path) -> ParsedModule | None:
        """Return a module with its tree, None where it does not parse."""
        kept = self._load(path)
        return kept.parsed if kept is not None else None

    def facts(self, path: Path) -> Facts | None:
        """Return the facts of a file, None where it does not parse."""
        kept = self._load(path)
        if kept is None:
            return None
        if kept.facts is None:
            with reading(path):
                kept.facts = self._make(kept.parsed)
        return kept.facts

    def parses(self, path: Path) -> bool:
        """Return whether a file parses."""
        if path not in self._parses:
            self._load(path)
        return self._parses[path]

    # -- answers -----------------------------------------------------------------------------

    def uses(self, path: Path, qualname: str) -> tuple[RemoteUse, ...]:
        """Return what a file does with a function of another one."""
        known = self._known.setdefault(path, _Known())
        known.asked = True
        if qualname not in known.uses:
            if known.written and _is_askable(qualname, self._askable()):
                return ()
            facts = self.facts(path)
            if facts is None:
                return ()
            with reading(path):
                _write_use(known.uses, facts, qualname)
        return known.uses[qualname]

    def strings(self, path: Path, value: str) -> int | None:
        """Return how often a string is a literal in a file, None where it does not parse."""
        known = self._known.setdefault(path, _Known())
        if known.strings is None:
            parsed = self.parsed(path)
            if parsed is None:
                return None
            with reading(path):
                known.strings = Counter(
                    n.value
                    for n in walk(parsed.tree)
                    if isinstance(n, ast.Constant) and isinstance(n.value, str)
                )
        return known.strings[value]

    def made(self, path: Path, make: Callable[[Facts], _T]) -> _T | None:
        """Return what a function makes of the facts of a file, None where it does not parse."""
        key = path, make
        if key not in self._made:
            facts = self.facts(path)
            with reading(path):
                self._made[key] = make(facts) if facts is not None else None
        return cast("_T | None", self._made[key])


def _is_askable(qualname: str, askable: Askable) -> bool:
    home, _, last = qualname.rpartition(".")
    return last in askable.get(home, ())


def _write_uses(
    uses: dict[str, tuple[RemoteUse, ...]], facts: Facts, askable: Askable, words: Set[str]
) -> None:
    """Add what a file does with each thing that may be asked for, whose names are the words."""
    for last in facts.contexts.imported_words & words:
        for qualname in facts.contexts.external_loads(last):
            if _is_askable(qualname, askable):
                _write_use(uses, facts, qualname)


def _write_use(uses: dict[str, tuple[RemoteUse, ...]], facts: Facts, qualname: str) -> None:
    if qualname in uses:
        return

    def is_it(target: Origin) -> bool:
        assert facts.project is not None
        return isinstance(target, External) and (
            facts.project.canonical(target.qualname, facts.path) == qualname
        )

    remote_uses = []
    for node in facts.contexts.external_loads(qualname.rpartition(".")[2]).get(qualname, ()):
        for use in facts.flows.flow(node):
            context = facts.contexts.at(use.node)
            place: Any = use.node if hasattr(use.node, "lineno") else node
            remote_uses.append(
                RemoteUse(
                    use.kind,
                    derivative_name(facts, use),
                    facts.source.path,
                    facts.source.span(place),
                    use.mode == "forward",
                    context.loop or (use.api is not None and use.api.kind != "branch"),
                    context.reverse,
                    is_rule(use, context),
                    use.through,
                    replaces_checkpoint(facts, use.node, is_it),
                    _remote_around(facts, use),
                )
            )
    uses[qualname] = tuple(remote_uses)


def _remote_around(facts: Facts, use: Use) -> RemoteAround | None:
    around = facts.contexts.around(use)
    if around is None or facts.path is None:
        return None
    places = [
        RemoteCheckpoint(callee_text(site), facts.source.path, facts.source.span(site.node))
        for site in around.sites
    ]
    return RemoteAround(places[0] if places else None, around.names, around.unused, facts.path)
