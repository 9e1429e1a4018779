"""What a release needs: links from one module, pinned tools and actions, the version as tag."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from jaxresid._version import __version__
from jaxresid.base import urls

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STATED = 'REPOSITORY = "https://github.com/a/jaxresid"\nDOCUMENTATION = "https://a.github.io/b"\n'


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path):
    """What the check of a release reads, ready to be released."""
    (tmp_path / "jaxresid/base").mkdir(parents=True)
    (tmp_path / "jaxresid/_version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "jaxresid/base/urls.py").write_text(STATED)
    (tmp_path / "CITATION.cff").write_text('repository-code: "https://github.com/a/jaxresid"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2030-01-31)\n\n- All.\n")
    return tmp_path


def test_what_keeps_a_tag_from_being_released(tree):
    problems = load(ROOT / ".ci/release.py").problems
    assert problems(tree, "v1.2.3") == []
    assert "the tag is v1.2.4" in problems(tree, "v1.2.4")[0]
    (tree / "jaxresid/base/urls.py").write_text("REPOSITORY = None\nDOCUMENTATION = None\n")
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (unreleased)\n")
    assert [p.split()[0] for p in problems(tree, "v1.2.3")] == [
        *("jaxresid/base/urls.py", "jaxresid/base/urls.py", "CITATION.cff", "CHANGELOG.md")
    ]


def test_this_tree_says_what_keeps_it_from_being_released():
    found = load(ROOT / ".ci/release.py").problems(ROOT, f"v{__version__}")
    assert any("REPOSITORY" in problem for problem in found) == (urls.REPOSITORY is None)
    assert any("CHANGELOG" in problem for problem in found) == (
        f"## {__version__} (unreleased)" in (ROOT / "CHANGELOG.md").read_text()
    )


def test_links_come_from_one_module(tree):
    pytest.importorskip("hatchling")
    hook = load(ROOT / "hatch_build.py").Urls(str(tree), {})
    metadata = {}
    hook.update(metadata)
    assert metadata["urls"] == {
        "Repository": "https://github.com/a/jaxresid",
        "Changelog": "https://github.com/a/jaxresid/blob/main/CHANGELOG.md",
        "Issues": "https://github.com/a/jaxresid/issues",
        "Documentation": "https://a.github.io/b",
    }
    (tree / "jaxresid/base/urls.py").write_text("REPOSITORY = None\nDOCUMENTATION = None\n")
    hook.update(metadata)
    assert metadata["urls"] == {}


def test_lint_tools_are_pinned_in_one_place():
    pinned = PROJECT["optional-dependencies"]["lint"]
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", requirement) for requirement in pinned)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"repo: (.*)", hooks)) == {"local"}
    assert set(re.findall(r"language: (.*)", hooks)) == {"system"}


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/workflows").iterdir()), ids=lambda p: p.stem
)
def test_actions_are_pinned(path):
    for used in re.findall(r"uses: (.*)", path.read_text()):
        if not used.startswith("./"):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", used)
