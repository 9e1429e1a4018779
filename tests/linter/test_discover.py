"""Finding files: git and ruff are asked what they find, and ours must be the same."""

import inspect
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jaxresid.linter.run.discover import (
    FoundFile,
    UnreadablePath,
    UsageError,
    discover,
    module_name,
    project_root,
)
from jaxresid.settings.config import ConfigError, Options, combine

RUFF = shutil.which("ruff", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
needs_ruff = pytest.mark.skipif(RUFF is None, reason="ruff is not installed")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configured(root, **options):
    return combine(Options(), Options(**options), root=root, cwd=root)


def make(root, *names):
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def shown(paths, config):
    return [item.path for item in discover(paths, config)]


def test_directories_are_walked_for_python(here):
    make(here, "b.py", "a/x.pyi", "a/n.ipynb", "a/c.txt", "a/.hidden.py", "z.PY", "a/b/c/d.py")
    found = discover(["."], configured(here))
    assert [f.path for f in found] == ["a/.hidden.py", "a/b/c/d.py", "a/n.ipynb", "a/x.pyi", "b.py"]
    assert [f.absolute for f in found] == [here / f.path for f in found]
    assert not any(f.explicit for f in found)


def test_what_is_named_is_taken_and_shown_as_named(here):
    make(here, "script", "a/x.py", "a/y.py", "venv/v.py")
    config = configured(here)
    assert discover(["./script"], config) == (FoundFile("script", here / "script", True),)
    assert shown(["venv/v.py"], config) == ["venv/v.py"]
    assert shown(["./a"], config) == ["a/x.py", "a/y.py"]
    assert shown([f"{here}/a/"], config) == [f"{here}/a/x.py", f"{here}/a/y.py"]
    assert shown([f"../{here.name}/a"], config) == [
        f"../{here.name}/a/x.py",
        f"../{here.name}/a/y.py",
    ]
    assert discover([], config) == ()


def test_each_file_once(here):
    make(here, "a/x.py", "a/y.py")
    config = configured(here)
    found = discover(["a", "a/x.py", ".", str(here)], config)
    assert [(f.path, f.explicit) for f in found] == [("a/x.py", True), ("a/y.py", False)]


def test_an_absent_path_is_a_usage_error(here):
    make(here, "a.py")
    with pytest.raises(UsageError, match=r"no such file or directory: b\.py"):
        discover(["a.py", "b.py"], configured(here))
    with pytest.raises(UsageError, match="no such file"):
        discover([""], configured(here))


def test_links(here):
    make(here, "a/x.py", "b/y.py", "t.txt")
    (here / "a/loop").symlink_to(here)
    (here / "a/dir.py").symlink_to(here / "b")
    (here / "a/again.py").symlink_to("x.py")
    (here / "b/other.py").symlink_to(here / "t.txt")
    (here / "z").symlink_to(here / "b")
    config = configured(here)
    assert shown(["."], config) == ["a/again.py", "b/other.py", "b/y.py"]
    assert shown(["a/x.py", "."], config) == ["a/x.py", "b/other.py", "b/y.py"]
    assert shown(["z"], config) == ["z/other.py", "z/y.py"]
    assert shown(["z", "b"], config) == ["z/other.py", "z/y.py"]


def test_what_cannot_be_read_is_told(here, monkeypatch):
    make(here, "a/x.py", "locked/y.py")
    (here / "a/nothing.py").symlink_to("absent.py")
    (here / "a/.#x.py").symlink_to("me@host.123")
    (here / "a/self.py").symlink_to("self.py")
    os.mkfifo(here / "a/pipe.py")
    scandir = os.scandir

    def refusing(path):
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = discover(["."], configured(here))
    assert [f.path for f in found if isinstance(f, FoundFile)] == ["a/x.py"]
    assert [f for f in found if isinstance(f, UnreadablePath)] == [
        UnreadablePath("a/nothing.py", "it is a broken symbolic link"),
        UnreadablePath("a/pipe.py", "it is not a regular file"),
        UnreadablePath("a/self.py", "too many levels of symbolic links"),
        UnreadablePath("locked", "permission denied"),
    ]
    assert discover(["a/nothing.py"], configured(here)) == (
        UnreadablePath("a/nothing.py", "it is a broken symbolic link"),
    )


def test_a_deep_tree_is_no_recursion(here):
    make(here, "d/" * 200 + "x.py")
    config = configured(here)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 100)
    try:
        assert len(discover(["."], config)) == 1
    finally:
        sys.setrecursionlimit(limit)


# Excluding.


def test_default_excludes_apply_below_what_is_named(here):
    make(here, "venv/site-packages/jax/a.py", "build/b.py", "venv/site-packages/jax/venv/c.py")
    config = configured(here)
    assert shown(["."], config) == []
    assert shown(["venv/site-packages/jax"], config) == ["venv/site-packages/jax/a.py"]
    assert shown(["venv"], config) == []


def test_force_exclude(here):
    make(here, "venv/a/b.py", "x.py", "gen/y.py")
    config = configured(here, force_exclude=True, extend_exclude=("gen",))
    assert shown(["venv/a/b.py", "x.py", "gen", "gen/y.py"], config) == ["x.py"]
    inside = replace(config, root=here / "venv")
    assert shown(["venv/a/b.py"], inside) == ["venv/a/b.py"]


def test_force_exclude_leaves_alone_what_contains_the_root(tmp_path, monkeypatch):
    root = tmp_path / "build" / "project"
    make(root, "x.py")
    monkeypatch.chdir(root)
    assert shown(["x.py"], configured(root, force_exclude=True)) == ["x.py"]


TREE = ("a/foo/x.py", "a/b/foo.py", "foo/y.py", "z.py", "foo_1.py", "a/b/c/d.py", "[q]/e.py")
GLOBS = r"""foo foo/ a/* a/*.py **/foo ./foo *.py a/** a/**/x.py [f]oo {foo} {a,z.py} a ../HERE/foo
fo? a?foo f[!x]o foo/** ** * a**o.py [ {a a} [!]] \[q\] a/{b,foo} **/c/** foo*.py x.py */b [a-f]oo
/foo HERE/foo a/b/../foo a//foo a** [^f]oo [a-]oo a/***/x.py""".split()


@pytest.mark.tools
@needs_ruff
@pytest.mark.parametrize("pattern", GLOBS)
def test_excludes_are_ruffs(here, pattern):
    make(here, *TREE)
    pattern = pattern.replace("HERE", here.name)
    command = [RUFF, "check", "--show-files", "--no-cache", "--config"]
    (here / "ruff.toml").write_text(f"exclude = ['{pattern}']\ninclude = ['*.py']\n")
    ruff = subprocess.run([*command, "ruff.toml", "."], capture_output=True, text=True, check=False)
    try:
        config = configured(here, exclude=(pattern,))
    except ConfigError:
        assert ruff.returncode
        return
    assert ruff.returncode == 0, ruff.stderr
    files = [line for line in ruff.stdout.splitlines() if line.endswith(".py")]
    assert sorted(os.path.relpath(f, here) for f in files) == shown(["."], config)


# .gitignore.


def git(*arguments, cwd):
    command = ["git", "-c", "core.excludesFile=/dev/null", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


def git_files(cwd):
    listed = git("ls-files", "-z", "-co", "--exclude-standard", cwd=cwd).split("\0")
    return sorted(name for name in listed if name.endswith(".py"))


def unexcluded(root, **options):
    return configured(root, exclude=(".git",), **options)


@needs_git
def test_nested_gitignores(here):
    make(here, "a/x.py", "a/keep.py", "a/b/x.py", "gen/g.py", "gen/keep/h.py", "log/x.py", "y.py")
    make(here, "a/gen.py", "info/i.py", "deep/only/a.py", "deep/a.py")
    git("init", "-q", cwd=here)
    (here / ".gitignore").write_text("x.py\n/gen/\nlog\n!gen/keep/\n# y.py\ndeep/**/a.py\n")
    (here / "a/.gitignore").write_text("!x.py\n/keep.py\nb/*\n")
    (here / ".git/info/exclude").write_text("info/\ny.py\n")
    assert shown(["."], unexcluded(here)) == git_files(here) == ["a/gen.py", "a/x.py"]
    everything = unexcluded(here, respect_gitignore=False)
    assert len(shown(["."], everything)) == 11
    # What is named is walked; what is ignored inside stays out.
    assert shown(["gen"], unexcluded(here)) == ["gen/g.py", "gen/keep/h.py"]
    assert shown(["a"], unexcluded(here)) == ["a/gen.py", "a/x.py"]
    assert shown(["a/b"], unexcluded(here)) == []
    assert shown(["y.py"], unexcluded(here)) == ["y.py"]


def test_outside_a_repository_gitignore_does_not_count(here):
    make(here, "a.py", "b/c.py")
    (here / ".gitignore").write_text("*\n")
    assert shown(["."], unexcluded(here)) == ["a.py", "b/c.py"]
    make(here, "b/.git/", "b/d.py")
    (here / "b/.gitignore").write_text("d.py\n")
    assert shown(["."], unexcluded(here)) == ["a.py", "b/c.py"]


def test_a_named_directory_that_its_parents_ignore_is_free_of_them(here):
    make(here, ".git/", "env/lib/pkg/a.py", "env/lib/pkg/b.py")
    (here / "env/.gitignore").write_text("*\n")
    assert shown(["env/lib/pkg"], unexcluded(here)) == ["env/lib/pkg/a.py", "env/lib/pkg/b.py"]
    assert shown(["env"], unexcluded(here)) == []
    (here / "env/lib/pkg/.gitignore").write_text("b.py\n")
    assert shown(["env/lib/pkg"], unexcluded(here)) == ["env/lib/pkg/a.py"]


def test_a_repository_within_is_its_own(here):
    make(here, ".git/", "sub/.git/", "sub/a.py", "a.py")
    (here / ".gitignore").write_text("a.py\n")
    assert shown(["."], unexcluded(here)) == ["sub/a.py"]
    assert shown(["sub"], unexcluded(here)) == ["sub/a.py"]


@needs_git
def test_info_exclude_of_a_work_tree(here):
    make(here, "main/a.py")
    main = here / "main"
    git("init", "-q", cwd=main)
    git(
        "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty", cwd=main
    )
    git("worktree", "add", "-q", "../other", cwd=main)
    (main / ".git/info/exclude").write_text("a.py\n")
    make(here, "other/a.py", "other/b.py")
    assert shown(["other"], unexcluded(here)) == ["other/b.py"]
    assert git_files(here / "other") == ["b.py"]


PIECES = r"""a b c.py * ** ? *.py [ab] [!a] [^b] a* \a c.p[xy] [a [] []a] [z-a] [a-c]* *** a** b**y
] [[:alpha:]] [a\]] [!-b] \ [b-]""".split()
PIECES += ["a[!x]c.py", "[a/]", "b ", "b\\ ", " a", "*a*b*", "*c*.*y", "**/*a*/*c*"]


def random_ignore(rng):
    def pattern():
        body = "/".join(rng.choices(PIECES, k=rng.randrange(1, 4)))
        return rng.choice(["", "", "!"]) + rng.choice(["", "/"]) + body + rng.choice(["", "", "/"])

    lines = [pattern() for _ in range(rng.randrange(1, 5))]
    return rng.choice(["\n", "\r\n"]).join([*lines, rng.choice(["", "#c.py", " "])])


LINES = [
    "b\\ ",
    "b\\  ",
    "b ",
    "b\\",
    "/a[a/]c.py",
    "/a\\/c.py",
    "*\n!/a/",
    # The second line keeps `a/c.py` from being passed over for its name alone.
    "/a[!x]c.py\n/z/c.py",
    "/a[.-0]c.py\n/z/c.py",
]


@needs_git
@pytest.mark.parametrize("line", LINES)
def test_a_line_of_gitignore_is_gits(here, line):
    make(here, "a/c.py", "b/c.py", "b /c.py", "b  /c.py", "axc.py", "aac.py", "c.py", "b\\/c.py")
    git("init", "-q", cwd=here)
    (here / ".gitignore").write_text(line)
    assert shown(["."], unexcluded(here)) == git_files(here)


@pytest.mark.integration
@needs_git
def test_gitignore_is_gits(here):
    directories = ["", *(f"{x}/" for x in "abd"), *(f"{x}/{y}/" for x in "abd" for y in "abd")]
    directories.append("b /")
    make(here, *(d + name for d in directories for name in ("c.py", "ab.py", "x.py")))
    git("init", "-q", cwd=here)
    rng = random.Random(11)
    seen = set()
    for _ in range(250):
        files = [here / d / ".gitignore" for d in rng.choices(directories[:7], k=2)]
        for file in files:
            file.write_bytes(random_ignore(rng).encode())
        expected = git_files(here)
        assert shown(["."], unexcluded(here)) == expected, [(f, f.read_text()) for f in files]
        seen.add(len(expected))
        for file in files:
            file.unlink(missing_ok=True)
    assert len(seen) > 8


# Projects and modules.


def test_project_root(here):
    make(here, "p/pyproject.toml", "p/src/pkg/__init__.py", "p/src/pkg/a.py", "g/.git/", "g/x/y.py")
    assert project_root("p/src/pkg/a.py") == here / "p"
    assert project_root("p/src") == here / "p"
    assert project_root("g/x/y.py") == here / "g"


def test_the_root_of_an_installed_package_is_the_package(here):
    make(here, "pyproject.toml", "site-packages/one.py")
    make(here, *(f"site-packages/jax/{d}__init__.py" for d in ("", "_src/")))
    jax = here / "site-packages/jax"
    assert project_root(jax / "_src/core.py") == jax
    assert project_root(jax) == jax
    assert project_root(here / "site-packages/one.py") == here / "site-packages"


def test_without_a_project_it_is_the_topmost_package(tmp_path):
    make(tmp_path, "site-packages/a/b/__init__.py", "site-packages/a/b/c/__init__.py")
    assert project_root(tmp_path / "site-packages/a/b/c/d.py") == tmp_path / "site-packages/a/b"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("pkg/a.py", "pkg.a"),
        ("pkg/__init__.py", "pkg"),
        ("pkg/sub/b.py", "pkg.sub.b"),
        ("pkg/sub/__init__.pyi", "pkg.sub"),
        ("src/lib/c.py", "lib.c"),
        ("scripts/train.py", "scripts.train"),
        ("src/space/d.py", "space.d"),
        ("src/e.py", "e"),
        ("train.py", "train"),
        ("my-script.py", None),
        ("pkg/n.ipynb", None),
        ("../outside.py", "outside"),
    ],
)
def test_module_names(here, path, name):
    root = here / "root"
    make(root, "pkg/__init__.py", "pkg/sub/__init__.py", "src/lib/__init__.py")
    assert module_name(root / path, root) == name
    packages = {}
    assert module_name(root / path, root, packages) == name
    assert module_name(root / path, root, packages) == name
