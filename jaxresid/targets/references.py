"""Take apart references to functions and models: `file.py:function`, `nnx:file.py:Model(512)`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

# A framework's model is an expression, which may hold colons; what is before it never holds these.
_REFERENCE = re.compile(
    r"(?:(?P<framework>[A-Za-z]\w*):)?(?P<place>[^:()\[\]{}\"']+):(?P<expression>.+)", re.DOTALL
)
# A configuration and its settings: `base.yml model_name=llama2-7b`.
_CONFIGURATION = re.compile(
    r"(?P<framework>[A-Za-z]\w*):(?P<place>[^:()\[\]{}\"'=]+?\.ya?ml)(?:[:\s]\s*(?P<expression>.*))?",
    re.DOTALL,
)

# The options whose values may be references.
OPTIONS = ("--inputs", "--loss", "--optimizer")


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to what a module holds.

    Attributes:
      framework: the framework whose model it is; None for a function.
      place: a module or a file.
      expression: the name of a function, or a model as Python would make it; of a file of
        settings more of them, or "".
    """

    framework: str | None
    place: str
    expression: str

    def __str__(self) -> str:
        prefix = "" if self.framework is None else f"{self.framework}:"
        if _CONFIGURATION.fullmatch(f"{prefix}{self.place}"):
            return f"{prefix}{self.place} {self.expression}".rstrip()
        return f"{prefix}{self.place}:{self.expression}"


def parse_reference(text: str) -> Reference | None:
    """Return the parts of a reference, None where the text is none."""
    match = _CONFIGURATION.fullmatch(text) or _REFERENCE.fullmatch(text)
    if match is None:
        return None
    return Reference(match["framework"], match["place"], match["expression"] or "")


def file_from(folder: Path, file: str) -> str:
    """Return a file that is relative to a folder as seen from the working directory."""
    if folder == Path.cwd() or os.path.isabs(file):
        return file
    return os.path.relpath(folder / file)


def reference_from(folder: Path, text: str) -> str:
    """Return a reference whose file is relative to a folder as seen from the working directory."""
    reference = parse_reference(text)
    if reference is None or not (reference.place.endswith(".py") or "/" in reference.place):
        return text
    return str(replace(reference, place=file_from(folder, reference.place)))
