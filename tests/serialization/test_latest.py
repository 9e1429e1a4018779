"""Results that are kept for editors: read as they were written, or not at all."""

import json
import os
import time
from pathlib import Path

import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.base import user_cache
from jaxresid.base.violations import Edit, Fix, Span, Violation
from jaxresid.serialization import latest
from jaxresid.serialization.source_digests import digest_of, files_in, line_digests

FOUND = Violation(
    "JXR801",
    "x",
    "info",
    "m",
    "a.py",
    Span(1, 0, 1, 3),
    fix=Fix("f", (Edit(Span(1, 0, 1, 1), "y"),), "safe"),
)


def wave(x):
    return (jnp.sin(x) * x).sum()


@pytest.fixture(scope="module")
def report():
    return jaxresid.inspect(wave, on="tpu:v5e")(jnp.ones((4, 8)))


@pytest.fixture
def keep(report, tmp_path, monkeypatch):
    """Keeps a report of `train`, and returns the file; None where there is none."""
    monkeypatch.setenv("JAXRESID_CACHE_DIR", str(tmp_path / "cache"))

    def keep(command="check", target="train", since=None, **more):
        now = time.time()
        since = now if since is None else since
        latest.keep(command, target, str(tmp_path), [target], report, since=since, now=now, **more)
        found = sorted((tmp_path / "cache" / "results").glob("*.json"), key=os.path.getmtime)
        return found[-1] if found else None

    return keep


def test_it_is_read_as_it_was_kept(keep, report, tmp_path):
    edit = latest.KeptEdit("/a.py", "d", "text\n")
    kept = latest.read(keep(findings=[FOUND], edits=[edit]))
    assert kept.result == report
    assert kept.findings == (FOUND,)
    assert kept.edits == (edit,)
    assert (kept.head.command, kept.head.target) == ("check", "train")
    assert kept.absolute("x.py") == os.path.join(os.getcwd(), "x.py")
    # The file of `wave`, as it is, with its lines; those of JAX without.
    content = Path(__file__).read_bytes()
    assert kept.sources[__file__].digest == digest_of(content)
    assert kept.sources[__file__].lines == line_digests(content)
    assert all(not s.lines for path, s in kept.sources.items() if "site-packages" in path)


def test_the_last_one_of_a_command_and_a_target_is_there(keep, tmp_path):
    assert keep() == keep()
    assert len({keep(), keep(target="other"), keep("report")}) == 3
    (results,) = (tmp_path / "cache").iterdir()
    assert sorted(p.name for p in results.iterdir() if p.suffix != ".json") == [
        ".gitignore",
        "CACHEDIR.TAG",
    ]


def test_what_was_written_during_the_trace_is_not_known(keep, tmp_path):
    early, late = tmp_path / "early.py", tmp_path / "late.py"
    early.write_text("x = 1\n")
    late.write_text("x = 1\n")
    os.utime(early, (1, 1))
    stat = late.stat().st_mtime
    kept = latest.read(keep(since=stat - 1, loaded=[str(early), str(late), str(tmp_path / "no")]))
    assert kept.sources[str(early)].digest == digest_of(b"x = 1\n")
    assert (kept.sources[str(late)].digest, kept.sources[str(late)].lines) == ("", ())
    assert str(tmp_path / "no") not in kept.sources


@pytest.mark.parametrize("change", ["cut", "digest", "name", "type", "schema", "kind", "link"])
def test_what_others_wrote_is_nothing(keep, change):
    file = keep(findings=[FOUND])
    first, _, data = file.read_bytes().partition(b"\n")
    head, body = json.loads(first), json.loads(data)
    if change == "cut":
        file.write_bytes(first + b"\n" + data[:-5])
    elif change == "digest":
        file.write_bytes(first + b"\n" + data.replace(b"train", b"brain", 1) + b" ")
    elif change == "name":
        other = file.with_name("0" * 64 + ".json")
        file = file.rename(other)
    elif change == "link":
        real = file.rename(file.with_name("real"))
        file.symlink_to(real)
    else:
        if change == "type":
            body["findings"][0]["span"]["row"] = "1"
        elif change == "schema":
            body["result"]["schema"] += 1
        else:
            body["result"]["kind"] = "plan"
        data = json.dumps(body).encode()
        file.write_bytes(json.dumps(head | {"digest": digest_of(data)}).encode() + b"\n" + data)
    assert latest.read(file) is None


def test_a_cache_that_cannot_be_written_keeps_nothing(keep, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    assert keep() is None
    assert latest.read(tmp_path / "cache" / "results" / "x.json") is None


def test_the_oldest_make_room(keep, monkeypatch):
    first = keep()
    monkeypatch.setattr(latest, "_LIMIT_NBYTES", int(first.stat().st_size * 2.5))
    others = [keep(target=name) for name in ("b", "c")]
    assert not first.exists()
    assert all(each.exists() for each in others)
    assert user_cache.is_entry(first.name)


def test_files_and_lines():
    document = {"a": [{"file": "x.py", "line": 1}], "file": "y.py", "b": {"file": None}}
    assert sorted(files_in(document)) == ["x.py", "y.py"]
    assert line_digests(b"a\r\nb \n\rc") == line_digests(b"a\nb\n\nc")
    assert len(set(line_digests(b"a\nb\nc"))) == 3
