"""Answer which files of a project could say something about a name, from their bytes alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from jaxresid.linter.text.prefilter import any_in_code
from jaxresid.linter.text.time_limit import reading

# An import statement with its names, over lines where brackets or backslashes continue it.
_IMPORT = re.compile(
    rb"(?:^(?<!\\\n)(?<!\\\r\n)|[;:])(?:[ \t]|\\\r?\n)*+"
    rb"(from\b((?:[ \t.\w]|\\\r?\n)*)\bimport\b|import\b)((?:[^\n(\\]|\\\r?\n)*+)",
    re.MULTILINE,
)
_DEFINED = ((b"def", b"("), (b"class", b"("), (b"class", b":"))
# What may stand around the text of a string literal: quotes, a backslash at the end of a line, and
# in f-strings the braces around an expression and what follows it there.
_BEFORE_TEXT = rb"(?<=[\"'\r\n{}:])"
_AFTER_TEXT = rb"(?=[\"'\\{}!:])"
_DEFINABLE = re.compile(rb"\b(?:def|class)[ \t]+(\w+)")
_WORD = re.compile(rb"\w+")
_DOTTED = re.compile(rb"\w+(?:\.\w+)*")
_SPACE = re.compile(rb"[\s\\]+")
_ATTRIBUTE = re.compile(rb"\.[\s\\]*+(\w+)")
_DOT_AND_COMMENT = re.compile(rb"\.[\s\\]*+(?=#)")
_AFTER_COMMENTS = re.compile(rb"(?:[\s\\]++|#[^\n]*+)*+(\w*+)")


# To look for so many words in all files, one after the other, takes as long as to list what files
# import and what they have after dots.
_FEW = 8


class Question(NamedTuple):
    """A question about each file of a project.

    Attributes:
      word: the word that the file must mention.
      parent: the module that the word is defined in, by the last part of its name, where the file
        must import the word or spell it as an attribute of that module; None where any mention will
        do.
    """

    word: str
    parent: str | None = None


class FileWords:
    """The words of one file that questions are about, each found when it is first needed."""

    __slots__ = ("_answers", "_attributes", "_imported", "_modules", "_path", "content")

    def __init__(self, content: bytes, path: Path = Path()) -> None:
        self.content = content
        self._path = path
        self._answers: dict[Question, bool] = {}
        self._imported: dict[bytes, list[bytes]] | None = None
        self._modules: frozenset[bytes] = frozenset()
        self._attributes: frozenset[bytes] | None = None

    @property
    def imported(self) -> Mapping[bytes, Sequence[bytes]]:
        """What import statements may bind, by its name there, and from where: `..pkg.module`."""
        if self._imported is None:
            self._imported = self._read_imports()
        return self._imported

    @property
    def modules(self) -> frozenset[bytes]:
        """The words in import statements."""
        if self._imported is None:
            self._imported = self._read_imports()
        return self._modules

    def _read_imports(self) -> dict[bytes, list[bytes]]:
        imported: dict[bytes, list[bytes]] = {}
        modules: set[bytes] = set()
        with reading(self._path):
            statements = list(_import_statements(self.content))
        for start, module, names in statements:
            words = _WORD.findall(names)
            modules.update(words)
            if start.startswith(b"f"):
                origin = _SPACE.sub(b"", module)
                modules.update(_WORD.findall(origin))
                for word in words:
                    imported.setdefault(word, []).append(origin)
            else:
                for dotted in _DOTTED.findall(names):
                    origin, _, word = dotted.rpartition(b".")
                    imported.setdefault(word, []).append(origin)
        self._modules = frozenset(modules)
        return imported

    @property
    def attributes(self) -> frozenset[bytes]:
        """The words that follow a dot."""
        if self._attributes is None:
            with reading(self._path):
                self._attributes = frozenset(_attributes(self.content))
        return self._attributes

    @property
    def definable(self) -> frozenset[str]:
        """The words after `def` and `class`."""
        words = _DEFINABLE.findall(self.content)
        return frozenset(word.decode("utf-8", "surrogatepass") for word in words)

    def could_answer(self, question: Question) -> bool:
        """Return whether the file belongs to the answer to a question."""
        known = self._answers.get(question)
        if known is None:
            known = self._answers[question] = self._could_answer(question)
        return known

    def _could_answer(self, question: Question) -> bool:
        word = question.word.encode("utf-8", "surrogatepass")
        if question.parent is None or word not in self.content:
            return word in self.content
        return word in self.imported or self.spells(word, question.parent)

    def defines(self, word: bytes) -> bool:
        """Return whether a `def` or `class` at the margin makes a word, and nothing else may."""
        return (
            any(b"\n%b %b%b" % (kind, word, after) in self.content for kind, after in _DEFINED)
            and b"\n%b =" % word not in self.content
            and word not in self.imported
        )

    def is_in_code(self, word: str) -> bool:
        """Return whether the file may mention a word outside its comments and strings."""
        matches = re.finditer(re.escape(word.encode("utf-8", "surrogatepass")), self.content)
        return any_in_code(self.content, (match.start() for match in matches))

    def may_quote(self, text: str) -> bool:
        """Return whether the file may have a string literal with just this text."""
        quoted = re.escape(text.encode("utf-8", "surrogatepass"))
        return re.search(_BEFORE_TEXT + quoted + _AFTER_TEXT, self.content) is not None

    def spells(self, word: bytes, parent: str) -> bool:
        """Return whether the file may use a word as an attribute of a module."""
        if word not in self.content or word not in self.attributes:
            return False
        home = parent.encode("utf-8", "surrogatepass")
        if home in self.modules:
            return True
        dotted = b"%b.%b" % (home, word)
        return dotted in self.content and _is_whole(dotted, self.content)


class Contents:
    """The bytes of a project's files.

    Args:
      known: bytes of files that were read before, or that replace what is in the file.
      remembered: what is known of files from before, which are not read again; what is learned is
        added.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        known: Mapping[Path, bytes],
        remembered: dict[Path, FileWords] | None = None,
    ) -> None:
        self._paths = paths
        self._known = known
        # What each file answered is remembered with its words, and then there is nothing to list.
        self._lists = remembered is None
        self._remembered = {} if remembered is None else remembered
        self._words: dict[Path, FileWords] = {}
        self._nsearched = 0
        self._answers: dict[Question, tuple[Path, ...]] = {}

    def words(self, path: Path) -> FileWords:
        """Return the words of a file; none where it cannot be read."""
        if path not in self._words:
            content = self._known.get(path)
            words = self._remembered.get(path)
            if words is None or content not in (None, words.content):
                if content is None:
                    try:
                        content = path.read_bytes()
                    except OSError:
                        content = b""
                words = self._remembered[path] = FileWords(content, path)
            self._words[path] = words
        return self._words[path]

    def content(self, path: Path) -> bytes:
        """Return a file's bytes; empty where it cannot be read."""
        return self.words(path).content

    def answer(self, question: Question) -> tuple[Path, ...]:
        """Return the files that could answer a question."""
        if question not in self._answers:
            self._answers[question] = self._asked(question)
        return self._answers[question]

    def _asked(self, question: Question) -> tuple[Path, ...]:
        word = question.word.encode("utf-8", "surrogatepass")
        places: Iterable[int] = range(len(self._paths))
        if self._lists and question.parent is not None and self._nsearched >= _FEW:
            places = self._mentioning.get(word, ())
        else:
            self._nsearched += question.parent is not None
        return tuple(
            self._paths[place] for place in places if self._all_words[place].could_answer(question)
        )

    @cached_property
    def _all_words(self) -> list[FileWords]:
        return [self.words(path) for path in self._paths]

    @cached_property
    def _mentioning(self) -> Mapping[bytes, Sequence[int]]:
        """The places of the files that import a word or have it after a dot, by word."""
        by_word: dict[bytes, list[int]] = {}
        for place, words in enumerate(self._all_words):
            for word in {*words.imported, *words.attributes}:
                by_word.setdefault(word, []).append(place)
        return by_word


def _import_statements(content: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the groups of `_IMPORT` for each of its matches, the last with its brackets.

    It is tried only on lines that have the word: to try it on all takes five times as long.
    """
    begin, end, at = 0, -1, content.find(b"import")
    last_bracket = content.rfind(b")")
    while at >= 0:
        start = content.rfind(b"\n", begin, at) + 1 or begin
        while start > begin and content.endswith((b"\\\n", b"\\\r\n"), 0, start):
            start = content.rfind(b"\n", begin, start - 1) + 1 or begin
        if end < at:  # a line may be long, and have many
            end = content.find(b"\n", at)
            end = end if end >= 0 else len(content)
        statement = _IMPORT.search(content, start, end)
        if statement is not None:
            statement = _IMPORT.match(
                content, statement.start()
            )  # with the lines that it goes on over
        begin = at + len(b"import")
        if statement is not None:
            names, stop = statement[3], statement.end()
            if content.startswith(b"(", stop) and stop < last_bracket:
                stop = content.find(b")", stop) + 1
                names = content[statement.start(3) : stop]
            yield statement[1], statement[2] or b"", names
            begin = max(begin, stop)
        at = content.find(b"import", begin)


def _attributes(content: bytes) -> Iterator[bytes]:
    yield from _ATTRIBUTE.findall(content)
    end = 0
    for dot in _DOT_AND_COMMENT.finditer(content):
        if dot.start() >= end:  # the others are in the comments that were passed just now
            after = _AFTER_COMMENTS.match(content, dot.end())
            assert after is not None
            end = after.end()
            yield after[1]


def _is_whole(dotted: bytes, content: bytes) -> bool:
    # A pattern that begins with a look behind is tried at each byte: 1.4 ms for 67 KB, this 14 µs.
    at = content.find(dotted)
    while at > 0 and _WORD.match(content, at - 1, at):
        at = content.find(dotted, at + 1)
    return at >= 0
