"""The cache: it answers for the content it was given, and for nothing else."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxresid.linter.run import cache as module
from jaxresid.linter.run.cache import LintCache, cache_key
from tests.where import ROOT

KEY = cache_key("1.0", "rules", "config", "/p")
LONG_AGO = 1_600_000_000 * 10**9


def stored(directory, path, payload, depends="d", content=None):
    cache = LintCache.open(directory, KEY)
    content = Path(path).read_bytes() if content is None else content
    cache.put(Path(path).name, content, payload, depends=depends)
    cache.save(Path(path).parent)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    return path


def got(directory, path, depends="d", key=KEY):
    cache = LintCache.open(directory, key)
    return cache.get(Path(path).name, Path(path).read_bytes(), depends=depends)


def test_what_was_put_is_got(tmp_path, source):
    payload = {"violations": [1, "é", None, {"a": [True]}], "\udcff": 2.5}
    stored(tmp_path / "c", source, payload)
    assert got(tmp_path / "c", source) == payload
    assert LintCache.open(tmp_path / "c", KEY).get("b.py", b"x = 1\n", depends="d") is None


def test_what_was_put_for_a_project_is_got(tmp_path, source):
    cache = LintCache.open(tmp_path / "c", KEY)
    cache.put_project(".", {"files": {}})
    cache.save(tmp_path)
    again = LintCache.open(tmp_path / "c", KEY)
    assert again.project(".") == {"files": {}}
    assert again.project("other") is None
    assert again.get(".", b"", depends="d") is None


def test_an_empty_payload_is_an_answer(tmp_path, source):
    stored(tmp_path / "c", source, [])
    assert got(tmp_path / "c", source) == []


def test_what_it_depends_on_counts(tmp_path, source):
    stored(tmp_path / "c", source, ["p"], depends="d")
    assert got(tmp_path / "c", source, depends="e") is None


def test_the_key_counts(tmp_path, source):
    stored(tmp_path / "c", source, ["p"])
    for position, other in itertools.product(range(4), ["other"]):
        parts = ["1.0", "rules", "config", "/p"]
        parts[position] = other
        assert got(tmp_path / "c", source, key=cache_key(*parts)) is None
    assert got(tmp_path / "c", source, key=cache_key("1.0", "rules", "config", "/p"))


def test_the_version_of_python_counts(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 99, 0, "final", 0))
    assert cache_key("1.0", "rules", "config", "/p") != KEY


def test_a_changed_file_is_a_miss(tmp_path, source):
    stored(tmp_path / "c", source, ["p"])
    source.write_text("x = 2\n")
    assert got(tmp_path / "c", source) is None


def test_a_file_that_was_only_touched_is_a_hit(tmp_path, source):
    stored(tmp_path / "c", source, ["p"])
    os.utime(source, ns=(LONG_AGO, LONG_AGO))
    assert got(tmp_path / "c", source) == ["p"]


def test_files_that_are_gone_are_dropped(tmp_path, source):
    other = tmp_path / "b.py"
    other.write_text("")
    stored(tmp_path / "c", source, ["p"])
    stored(tmp_path / "c", other, ["q"])
    source.unlink()
    LintCache.open(tmp_path / "c", KEY).save(tmp_path)
    text = (tmp_path / "c" / f"{KEY}.json").read_text()
    assert "a.py" not in text
    assert "b.py" in text


def test_nothing_new_writes_nothing(tmp_path, source):
    stored(tmp_path / "c", source, ["p"])
    file = tmp_path / "c" / f"{KEY}.json"
    before = file.stat().st_ino
    cache = LintCache.open(tmp_path / "c", KEY)
    cache.get("a.py", source.read_bytes(), depends="d")
    cache.save(tmp_path)
    assert file.stat().st_ino == before


def test_the_directory_is_passed_by(tmp_path, source):
    stored(tmp_path / "x/c", source, ["p"])
    assert (tmp_path / "x/c/.gitignore").read_text() == "*\n"
    tag = (tmp_path / "x/c/CACHEDIR.TAG").read_text()
    assert tag.startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert not list((tmp_path / "x/c").glob("*.tmp"))


def test_a_directory_with_other_things_is_not_made_ignored(tmp_path, source):
    stored(tmp_path, source, ["p"])
    assert got(tmp_path, source) == ["p"]
    assert not (tmp_path / ".gitignore").exists()


def test_old_caches_are_removed_and_nothing_else(tmp_path, source):
    directory = tmp_path / "c"
    stored(directory, source, ["p"])
    old = cache_key("0.9", "", "", "/p")
    for name in (f"{old}.json", f"{old}.1.2.tmp", "mine.json", f"{KEY}.txt"):
        (directory / name).touch()
        os.utime(directory / name, (0, 0))
    (directory / f"{old[::-1]}.json").touch()
    stored(directory, source, ["q"])
    kept = {path.name for path in directory.iterdir()}
    assert kept >= {"mine.json", f"{KEY}.txt", f"{old[::-1]}.json", f"{KEY}.json"}
    assert not kept & {f"{old}.json", f"{old}.1.2.tmp"}


# Damage.


def damages():
    head = {"jaxresid-cache": 3, "key": KEY}
    yield "empty", lambda data: b""
    yield "truncated", lambda data: data[: len(data) // 2]
    yield "head only", lambda data: data.partition(b"\n")[0]
    yield "flipped", lambda data: data.replace(b'["p"]', b'["q"]')
    yield "binary", lambda data: bytes(range(256))
    yield "other json", lambda data: b'{"a": 1}'
    yield "a list", lambda data: b"[]\n[]"
    yield "other format", lambda data: data.replace(b'"jaxresid-cache": 3', b'"jaxresid-cache": 0')
    yield "other key", lambda data: data.replace(KEY.encode(), b"0" * 32)
    yield "nested", lambda data: json.dumps(head).encode() + b"\n" + b"[" * 100_000
    yield "nested head", lambda data: b"[" * 100_000


@pytest.mark.parametrize("damage", [pytest.param(d, id=name) for name, d in damages()])
def test_a_damaged_file_is_an_empty_cache(tmp_path, source, damage):
    stored(tmp_path / "c", source, ["p"])
    file = tmp_path / "c" / f"{KEY}.json"
    file.write_bytes(damage(file.read_bytes()))
    assert got(tmp_path / "c", source) is None
    stored(tmp_path / "c", source, ["r"])
    assert got(tmp_path / "c", source) == ["r"]


@pytest.mark.parametrize("entry", [None, 3, [], [1, 2], {"a": 1}, [1, 2, 3], ["", "d", None]])
def test_a_malformed_entry_is_a_miss(tmp_path, source, entry):
    directory = tmp_path / "c"
    stored(directory, source, ["p"])
    module._write(directory / f"{KEY}.json", KEY, {"files": {"a.py": entry}})
    assert got(directory, source) is None


@pytest.mark.parametrize("sections", [{}, {"files": 3}, {"files": [], "projects": "x"}])
def test_malformed_sections_are_empty(tmp_path, source, sections):
    directory = tmp_path / "c"
    stored(directory, source, ["p"])
    module._write(directory / f"{KEY}.json", KEY, sections)
    assert got(directory, source) is None
    assert LintCache.open(directory, KEY).project(".") is None


def test_a_directory_that_cannot_be_made_is_no_cache(tmp_path, source):
    blocker = tmp_path / "file"
    blocker.write_text("")
    stored(blocker, source, ["p"])
    stored(blocker / "c", source, ["p"])
    assert got(blocker / "c", source) is None


def test_a_directory_that_cannot_be_written_is_no_cache(tmp_path, source, monkeypatch):
    stored(tmp_path / "c", source, ["p"])

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    stored(tmp_path / "c", source, ["q"])
    assert got(tmp_path / "c", source) == ["p"]
    assert not list((tmp_path / "c").glob("*.tmp"))


def test_what_is_no_json_is_not_kept(tmp_path, source):
    stored(tmp_path / "c", source, object())
    assert got(tmp_path / "c", source) is None
    assert not list((tmp_path / "c").glob("*.tmp"))


# Others.


def test_what_another_run_wrote_meanwhile_is_kept(tmp_path, source):
    other = tmp_path / "b.py"
    other.write_text("y = 1\n")
    mine = LintCache.open(tmp_path / "c", KEY)
    stored(tmp_path / "c", other, ["theirs"])
    mine.put("a.py", source.read_bytes(), ["mine"], depends="d")
    mine.save(tmp_path)
    assert got(tmp_path / "c", source) == ["mine"]
    assert got(tmp_path / "c", other) == ["theirs"]


WRITER = """
import sys
from pathlib import Path
from jaxresid.linter.run.cache import LintCache
directory, key, start = sys.argv[1], sys.argv[2], int(sys.argv[3])
for i in range(start, start + 25):
    path = Path(directory).parent / f"{i}.py"
    path.write_text(str(i))
    cache = LintCache.open(directory, key)
    cache.put(path.name, path.read_bytes(), [i], depends="d")
    cache.save(path.parent)
"""


def test_two_processes_lose_nothing(tmp_path):
    root = ROOT
    runs = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / "c", KEY, str(start)], cwd=root)
        for start in (0, 100)
    ]
    assert [run.wait(timeout=30) for run in runs] == [0, 0]
    cache = LintCache.open(tmp_path / "c", KEY)
    for i in (*range(25), *range(100, 125)):
        found = cache.get(f"{i}.py", str(i).encode(), depends="d")
        assert found == [i]


def test_opening_a_big_cache_is_cheap(tmp_path):
    cache = LintCache.open(tmp_path, KEY)
    for i in range(5000):
        name = f"/some/where/in/a/project/of/models/{i}.py"
        cache.put(name, b"%d" % i, [], depends="d" * 32)
    cache.save(tmp_path)

    def timed(action):
        start = time.process_time()  # whatever else the machine does
        action()
        return time.process_time() - start

    body = (tmp_path / f"{KEY}.json").read_text().partition("\n")[2]
    parse = min(timed(lambda: json.loads(body)) for _ in range(7))
    assert min(timed(lambda: LintCache.open(tmp_path, KEY)) for _ in range(7)) < 3 * parse + 0.005


def test_a_link_is_not_followed(tmp_path, source, monkeypatch):
    """Neither that of the folder, where it leads out, nor those of its files."""
    outside = tmp_path / "outside"
    outside.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    (project / "cache").symlink_to(outside)
    cache = LintCache.open(project / "cache", "0" * 32)
    cache.put("a.py", b"x", {"a": 1}, depends="")
    cache.save(tmp_path)
    assert not any(outside.iterdir())
    inside = project / "inside"
    inside.mkdir()
    for name in (".gitignore", "CACHEDIR.TAG", f"{'0' * 32}.lock"):
        (inside / name).symlink_to(outside / name)
    (inside / f"{'0' * 32}.json").symlink_to(outside / "entry")
    cache = LintCache.open(inside, "0" * 32)
    cache.put("a.py", b"x", {"a": 1}, depends="")
    cache.save(tmp_path)
    assert not any(outside.iterdir())
