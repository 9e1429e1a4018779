"""The examples of the linter's rules: those that a rule shows, and the files of tests/linter/rules.

There is a folder for each rule, and a file in it for each example, whose name says what it shows:

    JXR106/made_by_a_factory.py        a module; the lines that are reported end in `# !`
    JXR106/made_by_a_factory.fixed.py  its exact text after all fixes, unsafe ones too
    JXR106/bad.fixed.py                that of the bad example that the rule itself shows
    JXR302/table_of_modes/             a project of several files, of which `module.py` is linted

Nothing may be reported in a module without a mark. Lines at its top that begin with `#:` are about
the example, and not part of it: `#: jax 0.9` is the JAX that is targeted, and others are remarks.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from jaxresid.linter.rules import KNOWN, rule


class Example(NamedTuple):
    """A module, and what is beside it."""

    source: str
    fixed: str | None = None  # its exact text after all fixes
    files: Mapping[str, str] = {}
    jax: tuple[int, int] | None = None  # the targeted one


FOLDER = Path(__file__).parent / "linter" / "rules"
MARK = re.compile(r"\s*# !$", re.MULTILINE)
_HEADER = re.compile(r"(?:#:.*\n)*")
_JAX = re.compile(r"#: jax (\d+)\.(\d+)\n")


@functools.cache
def examples(code: str) -> dict[str, Example]:
    """Return the examples of a rule by name: its own are `bad`, `good` and `good_2`."""
    shown = rule(KNOWN[code])
    folder = FOLDER / code
    own = {
        name: Example(e.source, _text(folder / f"{name}.fixed.py"), e.files)
        for name, e in zip(("bad", "good", "good_2"), (*shown.bad, *shown.good), strict=False)
    }
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    files = {p.stem: p for p in paths if not p.name.endswith((".fixed.py", "__pycache__"))}
    return own | {name: _read(path) for name, path in files.items()}


def example(code: str, name: str = "bad") -> Example:
    """Return one example of a rule."""
    return examples(code)[name]


def reported(code: str) -> dict[str, Example]:
    """Return the examples of a rule that it reports, by name."""
    return {name: e for name, e in examples(code).items() if marked(e.source)}


def silent(code: str) -> list[Example]:
    """Return the examples of a rule that it says nothing about."""
    return [e for e in examples(code).values() if not marked(e.source)]


def marked(source: str) -> list[int]:
    """Return the rows that are reported in an example."""
    return [i for i, line in enumerate(source.split("\n"), 1) if MARK.search(line)]


def _read(path: Path) -> Example:
    others = {}
    if path.is_dir():
        root, path = path, path / "module.py"
        others = {
            str(p.relative_to(root)): p.read_text()
            for p in sorted(root.rglob("*.py"))
            if p.name not in {"module.py", "module.fixed.py"}
        }
    text = path.read_text()
    header = _HEADER.match(text)[0]
    target = _JAX.search(header)
    if target is None and "#: jax" in header.lower():
        raise ValueError(f"{path}: the targeted JAX is written `#: jax 0.9`")
    return Example(
        text.removeprefix(header),
        _text(path.with_suffix(".fixed.py")),
        others,
        (int(target[1]), int(target[2])) if target else None,
    )


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None
