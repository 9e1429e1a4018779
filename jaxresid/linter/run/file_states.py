"""Keep up to date what is known of a project's files: their digests, and the answers about words.

Between runs a file is taken to be the same where its stat is, if that can be trusted. Answers are
brought up to date by asking about the files that changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxresid.linter.resolve.contents import FileWords, Question, content_digest
from jaxresid.linter.resolve.notes import answer_digest

# The coarsest timestamps are those of FAT. Within them a file can change and look unchanged.
GRANULARITY_NS = 2_000_000_000
# Where more of the files changed, to ask again what is needed takes less time.
_MAX_CHANGED = 0.2
_FEW = 50


class FileStates:
    """The files of a project as they are now.

    Args:
      paths: the files by the names that they have in the cache.
      stored: what `as_json` gave in the last run, or anything else.
      opened_ns: a time before any of the files was read.
    """

    def __init__(self, paths: Mapping[str, Path], stored: object, opened_ns: int) -> None:
        self._paths = paths
        self._opened_ns = opened_ns
        self._digests: dict[tuple[Question, bool], str] = {}
        self.digests: dict[str, str] = {}
        self._signatures: dict[str, list[int] | None] = {}
        self._irrelevant: dict[str, str] = {}
        before, answers = _decoded(stored)
        changed: dict[str, FileWords] = {}
        self._is_as_stored = before.keys() == paths.keys()
        for name, path in paths.items():
            signature = _signature(path)
            known = before.get(name)
            if known is not None and signature is not None and known[0] == signature:
                digest = known[1]
            else:
                self._is_as_stored = False
                content = _read(path)
                digest = content_digest(content)
                if known is None or known[1] != digest:
                    changed[name] = FileWords(content)
            self.digests[name] = digest
            self._signatures[name] = signature
            if known is not None and known[2] and known[1] == digest:
                self._irrelevant[name] = known[2]
        if len(changed) > max(_FEW, _MAX_CHANGED * len(paths)):
            answers = {}
        self.answers = {
            question: {n for n in names if n in self.digests and n not in changed}
            | {n for n, words in changed.items() if words.could_answer(question)}
            for question, names in answers.items()
        }

    def holds(self, dependencies: object) -> bool:
        """Return whether nothing changed of what `dependencies_json` of `kept` says."""
        match dependencies:
            case {"files": dict() as files, "questions": list() as questions}:
                return all(self.digests.get(name) == digest for name, digest in files.items()) and (
                    all(self._is_answer(question) for question in questions)
                )
        return False

    def _is_answer(self, stored: object) -> bool:
        match stored:
            case [str() as word, (str() | None) as parent, bool() as contents, str() as digest]:
                key = Question(word, parent), contents
                if key not in self._digests and key[0] in self.answers:
                    files = {name: self.digests[name] for name in self.answers[key[0]]}
                    self._digests[key] = answer_digest(files, contents=contents)
                return self._digests.get(key) == digest
        return False

    def answer(self, question: Question) -> tuple[Path, ...] | None:
        """Return the files in the answer to a question, in their order; None if it is not known."""
        names = self.answers.get(question)
        if names is None:
            return None
        return tuple(self._paths[name] for name in sorted(names, key=self._order.__getitem__))

    @cached_property
    def _order(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self._paths)}

    def add(self, answers: Mapping[Question, Set[str]]) -> None:
        """Take over answers that were found in this run."""
        self._is_as_stored = False
        self.answers.update({question: set(names) for question, names in answers.items()})

    def is_irrelevant(self, name: str, markers: str) -> bool:
        """Return whether it is known that a file concerns no rule with these markers."""
        return self._irrelevant.get(name) == markers

    def add_irrelevant(self, name: str, markers: str) -> None:
        """Take over that a file that was read in this run concerns no rule with these markers."""
        # It may have been read before its digest was taken.
        if self._is_settled(self._signatures.get(name)) and not self.is_irrelevant(name, markers):
            self._is_as_stored = False
            self._irrelevant[name] = markers

    @property
    def is_as_stored(self) -> bool:
        """Return whether nothing is known that the last run did not know."""
        return self._is_as_stored

    def are_current(self) -> bool:
        """Return whether no file has changed since."""
        for name, path in self._paths.items():
            signature = _signature(path)
            if signature != self._signatures[name]:
                return False
            if (
                not self._is_settled(signature)
                and content_digest(_read(path)) != self.digests[name]
            ):
                return False
        return True

    def _is_settled(self, signature: list[int] | None) -> bool:
        """Return whether a file cannot change without a change of its signature any more."""
        return signature is not None and max(signature[:2]) + GRANULARITY_NS <= self._opened_ns

    def as_json(self, asked: Set[Question]) -> dict[str, Any]:
        """Return what the next run needs.

        Args:
          asked: the questions that entries of the cache depend on.
        """
        return {
            "files": {
                name: [
                    signature if self._is_settled(signature) else None,
                    self.digests[name],
                    self._irrelevant.get(name, ""),
                ]
                for name, signature in self._signatures.items()
            },
            "answers": [
                [question.word, question.parent, sorted(names)]
                for question, names in self.answers.items()
                if question in asked
            ],
        }


def asked_in(dependencies: object) -> set[Question]:
    """Return the questions that stored dependencies have."""
    found = set()
    match dependencies:
        case {"questions": list() as questions}:
            for stored in questions:
                match stored:
                    case [str() as word, (str() | None) as parent, bool(), str()]:
                        found.add(Question(word, parent))
    return found


def _decoded(stored: object) -> tuple[dict[str, list[Any]], dict[Question, list[str]]]:
    """Return the files and the answers that `as_json` wrote; of anything else none."""
    match stored:
        case {"files": dict() as files, "answers": list() as answers}:
            pass
        case _:
            return {}, {}
    found: dict[Question, list[str]] = {}
    for answer in answers:
        match answer:
            case [str() as word, (str() | None) as parent, list() as names]:
                found[Question(word, parent)] = names
    # What an answer says of a file is worth as much as what is known of the file.
    known = {n: f for n, f in files.items() if isinstance(f, list) and len(f) == 3}
    return (known, found) if len(known) == len(files) else ({}, {})


def _signature(path: Path) -> list[int] | None:
    try:
        stat = os.stat(path)
    except (OSError, ValueError):
        return None
    # ctime cannot be set back, as mtime is by tools that copy it.
    return [stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError):
        return b""
