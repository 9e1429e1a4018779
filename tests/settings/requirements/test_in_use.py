"""Which of a project's files says what jax it uses."""

import os
import re

import pytest

from jaxresid import regular_files
from jaxresid.settings.requirements.in_use import jax_in_use
from jaxresid.settings.toml_values import ConfigFileError

LOCK = '[[package]]\nname = "jax"\nversion = "{}"\n'
PROJECT = '[project]\ndependencies = ["jax{}"]\n'


def written(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "version", "file"),
    [
        # A lock before the files of an environment, those before what users are asked for.
        (
            {
                "uv.lock": LOCK.format("0.5.0"),
                "requirements.txt": "jax==0.4.1",
                "pyproject.toml": PROJECT.format(">=0.4"),
            },
            (0, 5),
            "uv.lock",
        ),
        (
            {"requirements.txt": "jax==0.4.1", "pyproject.toml": PROJECT.format(">=0.4")},
            (0, 4),
            "requirements.txt",
        ),
        ({"pyproject.toml": PROJECT.format("<0.7")}, (0, 6), "pyproject.toml"),
        # What the project does not admit is out of date.
        (
            {"requirements.txt": "jax==0.4.1", "pyproject.toml": PROJECT.format(">=0.6,<0.9")},
            (0, 8),
            "pyproject.toml",
        ),
        (
            {"requirements.txt": "jax==0.4.1", "setup.py": "setup(install_requires=['jax>=0.6'])"},
            None,
            None,
        ),
        # What bounds nothing says nothing.
        (
            {"requirements.txt": "jax", "setup.cfg": "[options]\ninstall_requires = jax<0.6"},
            (0, 5),
            "setup.cfg",
        ),
        (
            {"requirements.txt": "numpy", "requirements-gpu.txt": "jax==0.4.1"},
            (0, 4),
            "requirements-gpu.txt",
        ),
        ({"requirements-a.txt": "jax==0.4.1", "requirements-b.txt": "jax"}, None, None),
        (
            {"requirements-a.txt": "jax==0.4.1", "requirements-b.txt": "jax==0.6.1"},
            (0, 6),
            "requirements-b.txt",
        ),
        (
            {"requirements.txt": "jax==0.4.1", "requirements-b.txt": "jax==0.6.1"},
            (0, 4),
            "requirements.txt",
        ),
        ({"requirements/tpu.txt": "jax==0.4.1"}, (0, 4), "requirements/tpu.txt"),
        (
            {"requirements.txt": "jax==0.4.1; os_name=='x'\njax==0.5.1; os_name=='y'"},
            (0, 5),
            "requirements.txt",
        ),
        ({"environment.yml": "dependencies:\n  - jax=0.4.26\n"}, (0, 4), "environment.yml"),
        ({"environment-gpu.yaml": "- jax=0.4.26\n"}, (0, 4), "environment-gpu.yaml"),
        ({"pixi.toml": '[dependencies]\njax = "<0.6"'}, (0, 5), "pixi.toml"),
        ({"pyproject.toml": "jax = [", "uv.lock": "jax"}, None, None),
        ({}, None, None),
    ],
)
def test_which_file_says_it(files, version, file, tmp_path):
    written(tmp_path, {".git/HEAD": "", "pkg/a.py": "", **files})
    found = jax_in_use(tmp_path / "pkg")
    assert found.version == version
    assert found.file == (tmp_path / file if file else None)


def test_the_nearest_of_each_kind_up_to_the_top_of_the_repository(tmp_path):
    written(
        tmp_path,
        {
            "uv.lock": LOCK.format("0.3.0"),
            "repo/.git/HEAD": "",
            "repo/poetry.lock": LOCK.format("0.6.0"),
            "repo/member/pyproject.toml": PROJECT.format(">=0.4"),
            "repo/example/requirements.txt": "jax==0.4.1",
            "repo/example/pyproject.toml": PROJECT.format("<0.5"),
            "other/.git/HEAD": "",
        },
    )
    assert jax_in_use(tmp_path / "repo/member").version == (0, 6)
    assert jax_in_use(tmp_path / "repo/example").version == (0, 4)
    assert jax_in_use(tmp_path / "other").version is None


def test_a_directory_is_read_once(tmp_path):
    written(tmp_path, {".git/HEAD": "", "requirements.txt": "jax==0.4.1", "a/x": "", "b/x": ""})
    known = {}
    assert jax_in_use(tmp_path / "a", known).version == (0, 4)
    (tmp_path / "requirements.txt").write_text("jax==0.6.1")
    assert jax_in_use(tmp_path / "b", known).version == (0, 4)
    assert jax_in_use(tmp_path / "b").version == (0, 6)
    assert set(known) == {tmp_path, tmp_path / "a", tmp_path / "b"}


def test_what_cannot_be_read_says_nothing(tmp_path):
    written(tmp_path, {".git/HEAD": "", "setup.cfg": "[options]\ninstall_requires = jax<0.6"})
    (tmp_path / "requirements.txt").mkdir()
    (tmp_path / "environment.yml").write_bytes(b"- jax=0.4\xff\n")
    assert jax_in_use(tmp_path).version == (0, 5)


@pytest.mark.parametrize(
    "name", ["uv.lock", "requirements.txt", "environment.yml", "setup.cfg", "pins.txt"]
)
def test_what_may_never_end_is_refused(tmp_path, name):
    written(tmp_path, {".git/HEAD": "", "requirements/base.txt": "-c ../pins.txt\njax"})
    os.mkfifo(tmp_path / name)
    reason = f"{name}: cannot be read: it is a named pipe, not a regular file"
    with pytest.raises(ConfigFileError, match=re.escape(reason)):
        jax_in_use(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(ConfigFileError, match="it is a device, not a regular file"):
        jax_in_use(tmp_path)
    (tmp_path / name).unlink()
    with open(tmp_path / name, "wb") as file:
        file.truncate(33 << 20)
    with pytest.raises(ConfigFileError, match="it has more than 32 MiB"):
        jax_in_use(tmp_path)


def test_files_that_include_one_another_are_each_read_once(tmp_path, monkeypatch):
    names = [f"requirements{i}.txt" for i in range(30)]
    text = "".join(f"-r {name}\n-c ./{name}\n" for name in names)
    written(tmp_path, {".git/HEAD": "", **dict.fromkeys(names, text)})
    (tmp_path / names[7]).write_text("jax==0.6.0\n")
    paths = []
    original = regular_files.read_limited

    def counted(path, limit):
        paths.append(path)
        return original(path, limit)

    monkeypatch.setattr(regular_files, "read_limited", counted)
    assert jax_in_use(tmp_path).version == (0, 6)
    assert sorted(path.name for path in paths) == sorted(names)
