"""Texts that are edited in an editor: positions in every encoding, and what is found in them."""

import random
import re

import pytest

from jaxresid.linter.run.files import LintRun
from jaxresid.server.analysis import Analysis
from jaxresid.server.buffers import ENCODINGS, Buffer, Change, Position
from jaxresid.settings.config import Options, load
from tests.server import texts
from tests.where import ROOT

# Form feeds and U+2028 end no line; \r alone does.
ALPHABET = ["a", "\n", "\r\n", "\r", "\f", "\u2028", "é", "€", "😀", "", "x = 1\n"]
FIXTURE = ROOT / "fixtures" / "lint"


def random_edit(rng, text, pieces):
    """(start, end, new text); neither end is in the middle of a line end."""
    cuts = [i for i in range(len(text) + 1) if text[i - 1 : i + 1] != "\r\n"]
    start, end = sorted(rng.choices(cuts, k=2))
    end = min(end, start + rng.randrange(12))
    while end not in cuts:
        end += 1
    return start, end, "".join(rng.choices(pieces, k=rng.randrange(4)))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_random_edits_leave_the_text_of_the_editor(encoding):
    rng = random.Random(7)
    expected, buffer = "", Buffer("", 0)
    for version in range(1, 1000):
        start, end, new = random_edit(rng, expected, ALPHABET)
        places = [Position(*texts.position(expected, at, encoding)) for at in (start, end)]
        expected = expected[:start] + new + expected[end:]
        buffer = buffer.changed([Change(*places, new)], version, encoding)
        assert (buffer.text, buffer.version) == (expected, version)
        if len(expected) > 200:
            expected, buffer = "", buffer.changed([Change(None, None, "")], version, encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_positions_outside_are_moved_inside(encoding):
    buffer = Buffer("aé\r\n😀b", 1)
    units = {"utf-8": 4, "utf-16": 2, "utf-32": 1}[encoding]
    assert buffer.offset(Position(0, 99), encoding) == 2
    assert buffer.offset(Position(9, 0), encoding) == len(buffer.text)
    assert buffer.offset(Position(1, units), encoding) == 5
    # In the middle of a character.
    assert buffer.offset(Position(1, units - 1), encoding) == 4
    assert buffer.character(2, 2, encoding) == units + 1


def test_a_byte_order_mark_is_in_the_text_alone():
    """The linter does not see it, so its columns of the first line are one too small."""
    text = "\ufeffimport jax; jax.checkpoint()\n"
    buffer = Buffer(text, 1)
    assert buffer.content.startswith(b"\xef\xbb\xbfimport")
    assert buffer.seen[0] == "import jax; jax.checkpoint()"
    assert [buffer.character(1, 12, e) for e in ENCODINGS] == [15, 13, 13]
    assert buffer.character(2, 0, "utf-8") == 0


def test_a_project_ends_at_the_folder_that_is_open(tmp_path):
    """And what is above it is not read."""
    (tmp_path / "pyproject.toml").touch()
    inner = tmp_path / "inner"
    inner.mkdir()
    model = b"import jax\n\n\n@jax.checkpoint\ndef loss(w):\n    return w.sum()\n"
    (inner / "model.py").write_bytes(model)
    use = "import jax\nfrom inner.model import loss\nstep = jax.grad(loss)\n"
    (tmp_path / "use.py").write_text(use)
    (tmp_path / "inner" / "__init__.py").touch()
    path = inner / "model.py"
    found = [Analysis([at]).lint(path, {path: model}).violations for at in (tmp_path, inner)]
    assert [[v.code for v in each] for each in found] == [["JXR101"], []]


@pytest.mark.parametrize("saved", ["model use", "model", "use", ""])
def test_files_that_were_never_saved_are_of_the_project(tmp_path, saved):
    """As if they were saved, also where only the one that is imported, or imports, is new."""
    (tmp_path / "pyproject.toml").write_text('[tool.jaxresid]\nexclude = ["old.py"]\n')
    model = b"import jax\n\n\n@jax.checkpoint\ndef loss(w):\n    return w.sum()\n"
    use = b"import jax\nfrom pkg.model import loss\nstep = jax.grad(loss)\n"
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, text in (("model", model), ("use", use)):
        if name in saved.split():
            (package / f"{name}.py").write_bytes(text)
    path = package / "model.py"
    analysis = Analysis([tmp_path])

    def found(**others):
        texts = {package / f"{name}.py": text for name, text in others.items()}
        linted = analysis.lint(path, {path: model, **texts})
        return [v.code for v in linted.violations]

    assert found(use=use) == ["JXR101"]
    # What is closed again is not there; what is excluded does not count.
    assert found() == (["JXR101"] if "use" in saved else [])
    assert found(use=b"", old=use) == []
    assert found(use=b"", other=use) == ["JXR101"]


def test_content_is_what_the_file_would_hold():
    assert Buffer("# coding: latin-1\né = 1\n", 1).content == b"# coding: latin-1\n\xe9 = 1\n"
    assert Buffer("# coding: latin-1\n€\n", 1).content == b"# coding: latin-1\n?\n"
    assert Buffer("# coding: none-such\né\n", 1).content == "# coding: none-such\né\n".encode()
    assert Buffer("\ud800é", 1).content == b"?\xc3\xa9"


def test_edits_to_another_text_make_it():
    rng = random.Random(3)
    for _ in range(200):
        old, new = ("".join(rng.choices(ALPHABET, k=12)) for _ in range(2))
        if rng.random() < 0.5:
            new = old[:5] + new[5:]
        buffer = Buffer(old, 1)
        result = buffer._source.edited(buffer.edits_to(new))
        assert result == new


def fresh(path, contents, folder):
    """What a run finds that knows nothing."""
    run = LintRun(load(folder, Options()), nearest=Options(), overlay=dict(contents))
    return run.content(contents[path], str(path), path).violations


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(10))
def test_random_edits_are_linted_as_the_same_texts_at_once(seed, tmp_path):
    """Through one analysis, which remembers; what is typed are lines and tokens of a project."""
    (tmp_path / "pyproject.toml").touch()
    sources = {tmp_path / p.name: p.read_text() for p in sorted(FIXTURE.glob("*.py"))}
    for path, text in sources.items():
        path.write_text(text)
    everything = "".join(sources.values())
    rows, tokens = everything.splitlines(keepends=True), re.findall(r"\S+|\n *", everything)
    rng, seen, analysis = random.Random(seed), set(), Analysis([tmp_path])
    buffers = {path: Buffer(text, 0) for path, text in sources.items()}
    for version in range(1, 101):
        edited = rng.choice([*sources])
        buffer = buffers[edited]
        if rng.random() < 0.3:
            start, end, new = random_edit(rng, buffer.text, tokens)
        else:  # a line comes, goes or becomes another: what is left may parse
            start, end = rng.choice([m.span() for m in re.finditer(r"(?m)^.*\n?", buffer.text)])
            new = rng.choice([*rows, ""])
        at = [Position(*texts.position(buffer.text, i, "utf-16")) for i in (start, end)]
        buffers[edited] = buffer.changed([Change(*at, new)], version, "utf-16")
        contents = {path: buffer.content for path, buffer in buffers.items()}
        for path in sources:
            found = analysis.lint(path, contents).violations
            assert found == fresh(path, contents, tmp_path)
            seen.add((path, *(v.code for v in found)))
        if version % 4 == 0:
            buffers = {path: Buffer(text, version) for path, text in sources.items()}
    assert len(seen) > 4
