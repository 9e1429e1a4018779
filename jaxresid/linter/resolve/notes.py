"""Note what answers about other files were made from, to keep them until that changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from jaxresid.linter.resolve.contents import Contents, Question, content_digest


@dataclass(eq=False, slots=True)
class Notes:
    """What the answers to one asker were made from.

    Attributes:
      files: the files whose content counted.
      questions: the questions whose answer counted, and whether the content of the files in the
        answer did too.
      facts: the files whose facts counted, and with them all that those were made from.
    """

    files: set[Path] = field(default_factory=set)
    questions: dict[Question, bool] = field(default_factory=dict)
    facts: set[Path] = field(default_factory=set)

    def ask(self, question: Question, *, contents: bool) -> None:
        """Note that a question was asked, and whether the files' content counts."""
        self.questions[question] = contents or self.questions.get(question, False)

    def dependencies(self, others: Mapping[Path, Notes], contents: Contents) -> Dependencies:
        """Return what the answers depend on.

        Args:
          others: the notes of the files whose facts were asked.
          contents: the files as the answers saw them.
        """
        files, questions = set(self.files), dict(self.questions)
        seen: set[Path] = set()
        left = list(self.facts)
        while left:
            path = left.pop()
            if path in seen or path not in others:
                continue
            seen.add(path)
            notes = others[path]
            files |= notes.files
            left += notes.facts
            for question, counts in notes.questions.items():
                questions[question] = counts or questions.get(question, False)
        return Dependencies(
            {path: contents.digest(path) for path in files},
            {
                question: (counts, contents.answer(question))
                for question, counts in questions.items()
            },
        )


class Dependencies(NamedTuple):
    """What answers depend on.

    Attributes:
      files: files, with a digest of each.
      questions: questions, with whether the content of the files counts, and the files.
    """

    files: Mapping[Path, str]
    questions: Mapping[Question, tuple[bool, tuple[Path, ...]]]


def answer_digest(files: Mapping[str, str], *, contents: bool) -> str:
    """Return a digest of the answer to a question.

    Args:
      files: the files in it by their names, with a digest of each.
      contents: whether what is in the files counts.
    """
    parts = sorted(files.items()) if contents else sorted(files)
    return content_digest(repr(parts).encode("utf-8", "surrogatepass"))
