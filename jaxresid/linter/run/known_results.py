"""Take results from the cache where all that they were made from is as it was; keep new ones.

A result depends on the file, on its configuration, on which modules its project has, and on what
the rules asked of other files: nothing else of them counts, so that an edit of one file leaves the
results of those that never asked about it. All names are relative to the configuration's directory
and all files are compared by their content, so that the cache serves another checkout as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxresid.linter.resolve.contents import Question, content_digest
from jaxresid.linter.resolve.notes import Dependencies, answer_digest
from jaxresid.linter.run.cache import LintCache
from jaxresid.linter.run.cache_format import as_json, from_json
from jaxresid.linter.run.file_states import FileStates, asked_in
from jaxresid.violations import Linted

if TYPE_CHECKING:
    from jaxresid.linter.resolve.project_module import ProjectModule

# A digest per file, as `Contents.digest`.
_DigestOf = Callable[[Path], str]


class Learned(NamedTuple):
    """What a file's result depends on.

    Attributes:
      dependencies: for the cache.
      answers: the files in the answers, where they were not told before.
    """

    dependencies: dict[str, Any]
    answers: Mapping[Question, frozenset[str]]


class FileNames:
    """The names that files have in the cache.

    Args:
      root: the directory that they are relative to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._directories: dict[str, str] = {}

    def __call__(self, path: str | Path) -> str:
        """Return the name of a file, given by its absolute path."""
        directory, name = os.path.split(path)
        return f"{self.directory(directory)}/{name}"

    def directory(self, path: str | Path) -> str:
        """Return the name of a directory."""
        path = os.fspath(path)
        known = self._directories.get(path)
        if known is None:
            try:
                found = os.path.relpath(path, self.root)
            except ValueError:  # another drive
                found = path
            known = self._directories[path] = found.replace(os.sep, "/")
        return known

    def shown(self, path: str) -> str:
        """Return the name of a file that is shown by a path."""
        return self(os.path.abspath(path))

    def shown_as(self, name: str) -> str:
        """Return how a file is shown that nobody named, by its name."""
        return os.path.normpath(self.root / name)


class AnswerDigests:
    """What files depend on as the cache says it; what an answer has is told once.

    Args:
      names: the names of files.
    """

    def __init__(self, names: FileNames) -> None:
        self._names = names
        self._digests: dict[tuple[Path, Question, bool], str] = {}
        self._told: set[tuple[Path, Question]] = set()

    def learned(self, root: Path, dependencies: Dependencies, digest_of: _DigestOf) -> Learned:
        """Return what a file's result depends on.

        Args:
          root: the project.
          dependencies: what the result depends on.
          digest_of: a digest of each of the project's files.
        """
        answers: dict[Question, frozenset[str]] = {}
        questions = []
        for question, (contents, paths) in dependencies.questions.items():
            key = root, question, contents
            if key not in self._digests:
                files = {self._names(p): digest_of(p) if contents else "" for p in paths}
                self._digests[key] = answer_digest(files, contents=contents)
            if (root, question) not in self._told:
                self._told.add((root, question))
                answers[question] = frozenset(map(self._names, paths))
            questions.append([question.word, question.parent, contents, self._digests[key]])
        files = {self._names(path): digest for path, digest in dependencies.files.items()}
        return Learned({"files": files, "questions": questions}, answers)


class ProjectFacts(NamedTuple):
    """What results depend on of a project as a whole.

    Attributes:
      modules: its modules.
      settings: what else decides how they are seen.
    """

    modules: Sequence[ProjectModule]
    settings: str


class KnownResults:
    """The results of earlier runs.

    Args:
      cache: the cache.
      names: the names of files.
      facts_of: what is known of the project in a directory.

    Attributes:
      names: as given.
    """

    def __init__(
        self,
        cache: LintCache,
        names: FileNames,
        facts_of: Callable[[Path], ProjectFacts],
    ) -> None:
        self._cache = cache
        self.names = names
        self._facts_of = facts_of
        self._states: dict[Path, tuple[FileStates, str]] = {}

    def _state(self, root: Path) -> tuple[FileStates, str]:
        """Return the files of a project, and a digest of which there are."""
        if root not in self._states:
            modules, settings = self._facts_of(root)
            named = {self.names(module.path): module for module in modules}
            paths = {name: module.path for name, module in named.items()}
            stored = self._cache.project(self.names.directory(root))
            states = FileStates(paths, stored, self._cache.opened_ns)
            which = [(name, module.name) for name, module in named.items()]
            text = repr((settings, which)).encode("utf-8", "surrogateescape")
            self._states[root] = states, content_digest(text)
        return self._states[root]

    def find(self, path: str, absolute: Path, raw: bytes, root: Path, config: str) -> Linted | None:
        """Return the result for a file, None where there is none for all as it is now.

        Args:
          path: the file as it is shown.
          absolute: the file.
          raw: its bytes.
          root: the directory of its project.
          config: the fingerprint of its configuration.
        """
        states, which = self._state(root)
        stored = self._cache.get(self.names(absolute), raw, depends=f"{which} {config}")
        match stored:
            case {"result": result, "dependencies": dependencies} if states.holds(dependencies):
                try:
                    return from_json(result, path, self.names.shown_as)
                except (ValueError, RecursionError):  # someone else wrote it
                    return None
        return None

    def is_irrelevant(self, absolute: Path, root: Path, markers: str) -> bool:
        """Return whether a file is known to concern no rule with these markers."""
        return self._state(root)[0].is_irrelevant(self.names(absolute), markers)

    def add_irrelevant(self, absolute: Path, root: Path, markers: str) -> None:
        """Take over that a file that was read in this run concerns no rule with these markers."""
        self._state(root)[0].add_irrelevant(self.names(absolute), markers)

    def answer(self, root: Path, question: Question) -> tuple[Path, ...] | None:
        """Return the files that could answer a question about a project, None if unknown yet."""
        return self._state(root)[0].answer(question)

    def keep(
        self, absolute: Path, raw: bytes, root: Path, config: str, linted: Linted, learned: Learned
    ) -> None:
        """Keep a result, for `find` with the same arguments."""
        states, which = self._state(root)
        states.add(learned.answers)
        result = as_json(linted, self.names.shown)
        payload = {"result": result, "dependencies": learned.dependencies}
        self._cache.put(self.names(absolute), raw, payload, depends=f"{which} {config}")

    def save(self) -> None:
        """Write the cache, unless a file changed in the meantime."""
        changed = {
            root: states for root, (states, _) in self._states.items() if not states.is_as_stored
        }
        if not all(states.are_current() for states in changed.values()):
            return
        asked = set(_questions(self._cache.payloads())) if changed else set()
        for root, states in changed.items():
            self._cache.put_project(self.names.directory(root), states.as_json(asked))
        self._cache.save(self.names.root)


def _questions(payloads: Iterable[object]) -> Iterable[Question]:
    for payload in payloads:
        match payload:
            case {"dependencies": dependencies}:
                yield from asked_in(dependencies)
