"""Which of a project's files says what jax it uses."""

import os
import re

import pytest

from jaxresid.settings.requirements.in_use import JaxInUse, jax_in_use
from jaxresid.settings.toml_values import ConfigFileError

LOCK = '[[package]]\nname = "jax"\nversion = "{}"\n'
PROJECT = '[project]\ndependencies = ["jax{}"]\n'
# As uv writes it: other packages name jax, too.
WHOLE_LOCK = """version = 1
requires-python = ">=3.11"

[[package]]
name = "app"
version = "0.1"
source = { virtual = "." }
dependencies = [
    { name = "jax" },
]

[package.metadata]
requires-dist = [{ name = "jax", specifier = ">=0.6,<0.7" }]

[[package]]
name = "jax"
version = "0.6.2"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "jaxlib"
version = "0.7.0"
"""


def written(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "version", "file"),
    [
        # A lock before what users are asked for.
        (
            {"uv.lock": LOCK.format("0.5.0"), "pyproject.toml": PROJECT.format(">=0.4,<0.9")},
            (0, 5),
            "uv.lock",
        ),
        ({"pyproject.toml": PROJECT.format("<0.7")}, (0, 6), "pyproject.toml"),
        # What the project does not admit is out of date.
        (
            {"uv.lock": LOCK.format("0.5.0"), "pyproject.toml": PROJECT.format(">=0.6,<0.9")},
            (0, 8),
            "pyproject.toml",
        ),
        (
            {"uv.lock": LOCK.format("0.5.0"), "pyproject.toml": PROJECT.format(">=0.6")},
            None,
            None,
        ),
        ({"pyproject.toml": "jax = [", "uv.lock": "jax"}, None, None),
        # What other tools read says nothing here.
        ({"requirements.txt": "jax==0.4.1", "poetry.lock": LOCK.format("0.4.1")}, None, None),
        ({}, None, None),
        ({"uv.lock": WHOLE_LOCK}, (0, 6), "uv.lock"),
        ({"uv.lock": WHOLE_LOCK + LOCK.format("0.10.2")}, (0, 10), "uv.lock"),
        ({"uv.lock": WHOLE_LOCK.replace('name = "jax"\n', 'name = "flax"\n')}, None, None),
        # Dependency groups where nothing else names jax.
        (
            {"pyproject.toml": PROJECT.format("<0.7") + '[dependency-groups]\nold = ["jax<0.4"]'},
            (0, 6),
            "pyproject.toml",
        ),
        (
            {"pyproject.toml": '[dependency-groups]\ndev = ["jax==0.6.2", {include-group = "a"}]'},
            (0, 6),
            "pyproject.toml",
        ),
    ],
)
def test_which_file_says_it(files, version, file, tmp_path):
    written(tmp_path, {".git/HEAD": "", "pkg/a.py": "", **files})
    expected = JaxInUse(version, tmp_path / file if file else None)
    assert jax_in_use(tmp_path / "pkg") == expected


def test_the_nearest_of_each_kind_up_to_the_top_of_the_repository(tmp_path):
    written(
        tmp_path,
        {
            "uv.lock": LOCK.format("0.3.0"),
            "repo/.git/HEAD": "",
            "repo/uv.lock": LOCK.format("0.6.0"),
            "repo/member/pyproject.toml": PROJECT.format(">=0.4"),
            "repo/example/uv.lock": LOCK.format("0.4.1"),
            "repo/example/pyproject.toml": PROJECT.format("<0.5"),
            "other/.git/HEAD": "",
        },
    )
    assert jax_in_use(tmp_path / "repo/member").version == (0, 6)
    assert jax_in_use(tmp_path / "repo/example").version == (0, 4)
    assert jax_in_use(tmp_path / "other").version is None


def test_a_directory_is_read_once(tmp_path):
    written(tmp_path, {".git/HEAD": "", "uv.lock": LOCK.format("0.4.1"), "a/x": "", "b/x": ""})
    known = {}
    assert jax_in_use(tmp_path / "a", known).version == (0, 4)
    (tmp_path / "uv.lock").write_text(LOCK.format("0.6.1"))
    assert jax_in_use(tmp_path / "b", known).version == (0, 4)
    assert jax_in_use(tmp_path / "b").version == (0, 6)
    assert set(known) == {tmp_path, tmp_path / "a", tmp_path / "b"}


def test_what_cannot_be_read_says_nothing(tmp_path):
    written(tmp_path, {".git/HEAD": "", "pyproject.toml": PROJECT.format("<0.6")})
    (tmp_path / "uv.lock").mkdir()
    assert jax_in_use(tmp_path).version == (0, 5)
    (tmp_path / "uv.lock").rmdir()
    (tmp_path / "pyproject.toml").write_bytes(b'name = "jax\xff"\n')
    assert jax_in_use(tmp_path) == JaxInUse()


@pytest.mark.parametrize("name", ["uv.lock", "pyproject.toml"])
def test_what_may_never_end_is_refused(tmp_path, name):
    written(tmp_path, {".git/HEAD": ""})
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
