"""The configuration: reading it, its errors, and selection and globs as ruff has them."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxresid.settings.config import ConfigError, Options, combine, load, matches, parse
from jaxresid.settings.keys import (
    READERS,
    parse_per_file_ignores,
    parse_target_jax,
    split_selectors,
)

RUFF = shutil.which("ruff", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

KNOWN = {
    "JXR101": "checkpointed-loss",
    "JXR102": "checkpointed-last-stage",
    "JXR109": "unwrapped-loop-body",
    "JXR201": "uncalled-policy-factory",
    "JXR404": "cse-prevented-in-loop",
}
OFF = {"JXR109", "JXR404"}


def configured(toml="", options=None, **more):
    root = Path("/p")
    table = parse(toml) if toml else Options()
    return combine(
        table, options or Options(), root=root, cwd=root, file=root / "pyproject.toml", **more
    )


def enabled(config):
    return {code for code, name in KNOWN.items() if config.enabled(code, name, code not in OFF)}


@pytest.mark.parametrize(
    ("toml", "options", "on"),
    [
        ("", {}, {"JXR101", "JXR102", "JXR201"}),
        ('select = ["ALL"]', {}, set(KNOWN)),
        ('select = ["JXR"]', {}, set(KNOWN)),
        ('select = ["JXR1"]', {}, {"JXR101", "JXR102", "JXR109"}),
        ('select = ["checkpointed-loss"]', {}, {"JXR101"}),
        ("select = []", {}, set()),
        ('extend-select = ["JXR4"]', {}, {"JXR101", "JXR102", "JXR201", "JXR404"}),
        ('ignore = ["JXR1"]', {}, {"JXR201"}),
        ('extend-ignore = ["JXR1"]', {}, {"JXR201"}),
        ('ignore = ["checkpointed-loss"]', {}, {"JXR102", "JXR201"}),
        ('select = ["JXR1"]\nignore = ["JXR10"]', {}, set()),
        ('select = ["JXR10"]\nignore = ["JXR1"]', {}, {"JXR101", "JXR102", "JXR109"}),
        ('select = ["JXR101"]\nignore = ["JXR101"]', {}, set()),
        ('select = ["JXR101"]\nignore = ["checkpointed-loss"]', {}, set()),
        ('select = ["checkpointed-loss"]\nignore = ["ALL"]', {}, {"JXR101"}),
        # The command line is another layer: it overrides the file whatever the lengths are.
        ('ignore = ["JXR101"]', {"select": ("JXR",)}, set(KNOWN)),
        ('select = ["JXR101"]', {"extend_select": ("JXR2",)}, {"JXR101", "JXR201"}),
        ('select = ["JXR101"]', {"ignore": ("JXR",)}, set()),
        ('select = []\nignore = ["JXR101"]', {"select": ("JXR10",)}, {"JXR102", "JXR109"}),
    ],
)
def test_selection(toml, options, on):
    toml = f"[tool.jaxresid]\n{toml}\n"
    assert enabled(configured(toml, Options(**options))) == on


# Ours -> ruff's, of the same shape: letters, then digits.
AS_RUFF = {
    "ALL": "ALL",
    "JXR": "E",
    "JXR1": "E7",
    "JXR10": "E71",
    "JXR2": "E9",
    "JXR4": "E4",
    "JXR101": "E711",
    "JXR102": "E712",
    "JXR201": "E902",
    "JXR404": "E401",
}
COMPARED = [code for code in KNOWN if code in AS_RUFF]


def enabled_by_ruff(file, cli, directory):
    lines = ["[lint]"]
    command = [RUFF, "check", "--config", str(directory / "ruff.toml"), "--show-settings"]
    for key in ("select", "extend_select", "ignore"):
        option = key.replace("_", "-")
        if (values := getattr(file, key)) is not None:
            lines.append(f"{option} = {[AS_RUFF[v] for v in values]}")
        if values := getattr(cli, key):
            command.append(f"--{option}={','.join(AS_RUFF[v] for v in values)}")
    (directory / "ruff.toml").write_text("\n".join(lines))
    command.append(str(directory / "x.py"))
    settings = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    listed = settings.partition("linter.rules.enabled = [")[2].partition("]")[0]
    return {code for code in COMPARED if f"({AS_RUFF[code]})" in listed}


@pytest.mark.tools
@pytest.mark.skipif(RUFF is None, reason="ruff is not installed")
def test_selection_is_ruffs(tmp_path):
    (tmp_path / "x.py").touch()
    defaults = enabled_by_ruff(Options(), Options(), tmp_path)
    rng = random.Random(7)

    def some():
        return tuple(rng.choices(list(AS_RUFF), k=rng.randrange(3)))

    seen = set()
    for _ in range(60):
        file = Options(select=rng.choice([None, some()]), extend_select=some(), ignore=some())
        # `--select=` with nothing is not an empty selection.
        select = rng.choice([None, some() or None])
        cli = Options(select=select, extend_select=some(), ignore=some())
        root = Path("/p")
        config = combine(file, cli, root=root, cwd=root, file=root / "pyproject.toml")
        ours = {c for c in COMPARED if config.enabled(c, KNOWN[c], c in defaults)}
        assert ours == enabled_by_ruff(file, cli, tmp_path), (file, cli)
        seen.add(frozenset(ours))
    assert len(seen) > 4


def test_fixable():
    config = configured('[tool.jaxresid]\nfixable = ["JXR1"]\nunfixable = ["JXR102"]')
    assert config.fix_allowed("JXR101", "checkpointed-loss")
    assert not config.fix_allowed("JXR102", "checkpointed-last-stage")
    assert not config.fix_allowed("JXR201", "uncalled-policy-factory")
    assert configured().fix_allowed("JXR201", "uncalled-policy-factory")


@pytest.mark.parametrize(
    ("selector", "does"),
    [
        ("ALL", True),
        ("JXR101", True),
        ("JXR", True),
        ("checkpointed-loss", True),
        ("JX", False),
        ("J", False),
        ("", False),
        ("jxr101", False),
        ("JXR1011", False),
        ("checkpointed", False),
    ],
)
def test_what_a_selector_stands_for(selector, does):
    assert matches(selector, "JXR101", "checkpointed-loss") is does


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (
            'select = ["JXR1"]\nignore = ["JXR100"]',
            r":3: unknown rule.*JXR100.*`ignore`.*did you mean",
        ),
        ('select = [\n  "JXR1",\n  "JXR9",\n]', r":4: unknown rule `JXR9` in `select`"),
        ('extend-select = ["checkpointed_loss"]', r"did you mean `checkpointed-loss`"),
        ('fixable = ["jxr101"]', r"`fixable`; did you mean `JXR101`"),
        ('unfixable = ["X"]', r"`X` in `unfixable`"),
        ('per-file-ignores = { "a.py" = ["F401"] }', r":2: .*`F401` in `per-file-ignores`"),
        ('[tool.jaxresid.per-file-ignores]\n"b" = ["JXR1"]\n"a.py" = ["F401"]', r":5: .*`F401`"),
    ],
)
def test_an_unknown_selector_is_refused(toml, message):
    text = f"[tool.jaxresid]\n{toml}\n".replace("[tool.jaxresid]\n[tool", "[tool")
    text = "[tool.jaxresid]\nfix = false\n" + text if text.startswith("[tool.jaxresid.") else text
    config = configured(text, text=text)
    with pytest.raises(ConfigError, match=message):
        config.validate(KNOWN)


def test_an_unknown_selector_of_an_option_names_the_option():
    with pytest.raises(ConfigError, match="unknown rule `JXR999` in `--ignore`"):
        configured("", Options(ignore=("JXR999",))).validate(KNOWN)
    configured("", Options(ignore=("JXR1", "ALL", "checkpointed-loss"))).validate(KNOWN)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("slect = []", r"f.toml:2: unknown key `slect` .*did you mean `select`\?"),
        ("zzzz = []", r"known keys: select, ignore, "),
        ("fix_only = true", r"unknown key `fix_only`"),
        ('select = "JXR1"', r'f.toml:2: `select` is the string "JXR1"; .*select = \["JXR1"\]'),
        ("select = [1]", r"the list `select` contains the number 1"),
        ("fix = 1", r"`fix` is the number 1; write fix = true or fix = false"),
        ("target-jax = 0.10", r'write target-jax = "0.10"'),
        ('target-jax = "newest"', r"'newest' is not a version of JAX"),
        ('output-format = "jsn"', r"'jsn' is not one of text, .*did you mean `json`"),
        ("on = 3", r'f.toml:2: `on` is the number 3; write on = "gpu:h100"'),
        ('on = ""', r'f.toml:2: `on` is the string ""; write on = "gpu:h100"'),
        ("targets = []", r"f.toml:2: `targets` is a list; write a table for each, \[tool"),
        ("per-file-ignores = []", r"`per-file-ignores` is a list; write a table"),
        ('per-file-ignores = { "a" = "JXR1" }', r'write a list, "a" = \["JXR1"\]'),
        ('exclude = ["{a"]', r"`exclude`: '\{a' is not a glob: `\{` without `\}`"),
        ('exclude = ["a}"]', r"is not a glob: `\}` without `\{`"),
        ('extend-exclude = ["[a"]', r"`extend-exclude`: '\[a' is not a glob"),
        ('per-file-ignores = { "![" = [] }', r"is not a glob"),
        ("select = [", r"f.toml:.*not valid TOML"),
        ("= 3", r"f.toml:2:1: not valid TOML: Invalid statement"),
    ],
)
def test_what_is_refused_and_where(toml, message):
    with pytest.raises(ConfigError, match=message):
        parse(f"[tool.jaxresid]\n{toml}\n", Path("f.toml"))


def test_a_table_is_expected():
    with pytest.raises(ConfigError, match=r"is not a table; write \[tool.jaxresid\]"):
        parse("[tool]\njaxresid = 3")


def test_every_key_is_read():
    lists = ("select", "ignore", "extend-select", "extend-ignore", "fixable", "unfixable")
    text = "[tool.jaxresid]\n" + "".join(f'{key} = ["JXR{i}"]\n' for i, key in enumerate(lists))
    text += 'exclude = ["a"]\nextend-exclude = ["b"]\nforce-exclude = true\n'
    text += 'respect-gitignore = false\ntarget-jax = "0.10.2"\noutput-format = "json"\n'
    text += "unsafe-fixes = true\nfix = true\n"
    text += 'on = "tpu:v5e"\n[tool.jaxresid.targets.train]\ntarget = "m:f"\n'
    text += '[tool.jaxresid.per-file-ignores]\n"t/*" = ["JXR1"]\n'
    options = parse(text)
    assert all(getattr(options, key.replace("-", "_")) is not None for key in READERS)
    config = configured(text)
    assert [glob.pattern for glob in config.exclude] == ["a", "b"]
    assert options.on == "tpu:v5e"
    assert [(target.name, target.target) for target in options.targets] == [("train", "m:f")]
    assert config.selections[0].ignore == ("JXR1", "JXR3")
    assert config.target_jax == (0, 10)
    assert config.output_format == "json"
    assert (config.force_exclude, config.respect_gitignore) == (True, False)
    assert (config.unsafe_fixes, config.fix) == (True, True)


def test_options_win():
    text = '[tool.jaxresid]\nfix = true\noutput-format = "json"\nexclude = ["a"]'
    text += '\nextend-exclude = ["b"]\ntarget-jax = "0.7"\nper-file-ignores = {"*" = ["JXR1"]}'
    options = Options(
        fix=False,
        output_format="sarif",
        exclude=("c",),
        extend_exclude=("d",),
        target_jax=(0, 8),
        per_file_ignores=(("z.py", ("JXR2",)),),
    )
    root, cwd = Path("/p"), Path("/p/q")
    config = combine(parse(text), options, root=root, cwd=cwd, file=root / "pyproject.toml")
    assert not config.fix
    assert (config.output_format, config.target_jax) == ("sarif", (0, 8))
    assert [(g.pattern, g.base) for g in config.exclude] == [
        ("c", "/p/q"),
        ("b", "/p"),
        ("d", "/p/q"),
    ]
    assert config.ignored_in("/p/q/z.py") == ("JXR2",)
    assert config.ignored_in("/p/q/y.py") == ()


def test_defaults():
    config = combine(Options(), Options(), root=Path("/p"), cwd=Path("/p"))
    excluded = config.excluder()
    assert excluded("/p/.venv", ".venv")
    assert excluded("/elsewhere/site-packages", "site-packages")
    assert not excluded("/p/src", "src")
    assert (config.output_format, config.respect_gitignore) == ("text", True)
    with pytest.raises(ConfigError, match="not one of"):
        combine(Options(), Options(output_format="xml"), root=Path("/p"), cwd=Path("/p"))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_nearest_table_wins_and_nothing_is_merged(tmp_path):
    write(tmp_path / "pyproject.toml", "[tool.jaxresid]\nfix = true\nunsafe-fixes = true\n")
    write(tmp_path / "a/pyproject.toml", "[tool.jaxresid]\nfix = false\n")
    write(tmp_path / "a/b/pyproject.toml", "[tool.ruff]\n# not jaxresid\n")
    config = load(tmp_path / "a/b/c.py", Options())
    assert config.root == tmp_path / "a"
    assert not config.fix
    assert not config.unsafe_fixes
    assert load(tmp_path / "x", Options()).fix


def test_a_given_file_and_isolated(tmp_path):
    write(tmp_path / "pyproject.toml", '[tool.jaxresid]\nfix = true\nexclude = ["x"]\n')
    other = write(tmp_path / "other.toml", '[tool.jaxresid]\nexclude = ["y"]\n')
    config = load(tmp_path, Options(), config_file=other, cwd=tmp_path / "w")
    assert (config.root, config.exclude[0].pattern) == (tmp_path / "w", "y")
    assert not config.fix
    isolated = load(tmp_path, Options(), isolated=True, cwd=tmp_path)
    assert isolated.file is None
    assert not isolated.fix
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path, Options(), config_file=tmp_path / "absent.toml")


def test_files_that_do_not_concern_us_may_be_broken(tmp_path):
    write(tmp_path / "pyproject.toml", "[tool.jaxresid]\nfix = true\n")
    write(tmp_path / "a/pyproject.toml", "= broken =\n")
    assert load(tmp_path / "a", Options()).fix
    write(tmp_path / "b/pyproject.toml", "[tool.jaxresid]\nfix = tru\n")
    with pytest.raises(ConfigError, match=r"pyproject.toml:2:7: not valid TOML"):
        load(tmp_path / "b", Options())
    (tmp_path / "b/pyproject.toml").write_bytes(b"\xff jaxresid")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "b", Options())


def test_a_byte_order_mark_is_passed_over(tmp_path):
    (tmp_path / "pyproject.toml").write_bytes(b"\xef\xbb\xbf[tool.jaxresid]\nfix = true\n")
    assert load(tmp_path, Options()).fix


# per-file-ignores and globs.


@pytest.mark.parametrize(
    ("pattern", "path", "does"),
    [
        ("a.py", "/p/x/a.py", True),
        ("tests/*", "/p/tests/a.py", True),
        ("tests/*", "/p/tests/x/a.py", True),
        ("tests/*", "/p/x/tests/a.py", False),
        ("**/tests/*", "/p/x/tests/a.py", True),
        ("tests/**", "/p/tests/x/a.py", True),
        ("{tests,docs}/*.py", "/p/docs/a.py", True),
        ("[a-c].py", "/p/b.py", True),
        ("[!a-c].py", "/p/b.py", False),
        ("?.py", "/p/b.py", True),
        ("[]].py", "/p/].py", True),
        ("[!]].py", "/p/].py", False),
        ("[!]].py", "/p/b.py", True),
        ("a/**/b.py", "/p/a/xb.py", False),
        ("a/**/b.py", "/p/a/b.py", True),
        ("!src/**.py", "/p/src/a.py", False),
        ("!src/**.py", "/p/tests/a.py", True),
        ("!a.py", "/p/x/a.py", False),
        ("./tests/a.py", "/p/tests/a.py", True),
        ("../q/a.py", "/q/a.py", True),
        ("/q/*.py", "/q/a.py", True),
        (r"\[a\].py", "/p/[a].py", True),
    ],
)
def test_per_file_ignores(pattern, path, does):
    config = configured("", Options(per_file_ignores=((pattern, ("JXR1", "JXR201")),)))
    assert config.ignored_in(path) == (("JXR1", "JXR201") if does else ())


def test_a_base_with_glob_characters_is_taken_literally():
    root = Path("/p[x]{y}*")
    options = Options(per_file_ignores=(("tests/*", ("JXR1",)),))
    config = combine(Options(), options, root=root, cwd=root)
    assert config.ignored_in("/p[x]{y}*/tests/a.py") == ("JXR1",)
    assert config.ignored_in("/px{y}*/tests/a.py") == ()


@given(st.text("ab/*?[]{},!\\.", max_size=12))
def test_any_glob_is_a_glob_or_an_error(pattern):
    try:
        config = configured("", Options(exclude=(pattern,), per_file_ignores=((pattern, ()),)))
    except ConfigError:
        return
    config.excluder()("/p/a/b.py", "b.py")
    config.ignored_in("/p/a/b.py")


def test_what_options_give_is_split():
    assert split_selectors(["JXR1, JXR2", "ALL,"]) == ("JXR1", "JXR2", "ALL")
    assert parse_per_file_ignores(["a:JXR1,b/*:JXR2"]) == (("a", ("JXR1",)), ("b/*", ("JXR2",)))
    with pytest.raises(ConfigError, match="is not GLOB:CODE"):
        parse_per_file_ignores(["tests"])


# Versions of JAX.


def test_target_jax_comes_from_the_project(tmp_path):
    write(tmp_path / "pyproject.toml", '[project]\ndependencies = ["jax<0.7"]\n')
    assert load(tmp_path, Options()).target_jax == (0, 6)
    write(tmp_path / "a/pyproject.toml", "[tool.jaxresid]\nfix = true\n")
    assert load(tmp_path / "a", Options()).target_jax == (0, 6)
    write(tmp_path / "b/pyproject.toml", '[project]\ndependencies = ["jax<0.9"]\n')
    write(tmp_path / "b/c/pyproject.toml", '[project]\nname = "jax-less"\n')
    assert load(tmp_path / "b/c", Options()).target_jax == (0, 8)
    write(tmp_path / "a/pyproject.toml", '[tool.jaxresid]\ntarget-jax = "0.9"\n')
    assert load(tmp_path / "a", Options()).target_jax == (0, 9)
    assert load(tmp_path / "a", Options(target_jax=(0, 8))).target_jax == (0, 8)
    assert load(tmp_path, Options(), isolated=True).target_jax is None
    other = write(tmp_path / "o.toml", '[tool.jaxresid]\n[project]\ndependencies = ["jax<0.5"]\n')
    assert load(tmp_path, Options(), config_file=other).target_jax == (0, 4)
    assert parse_target_jax("0.12.1") == (0, 12)
