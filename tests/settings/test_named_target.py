"""`[tool.jaxresid.targets.NAME]`: its keys, its errors, and where they are."""

from pathlib import Path

import pytest

from jaxresid.settings.config import ConfigError, parse
from jaxresid.settings.project import Project, project
from jaxresid.settings.toml_values import location

HEADER = "[tool.jaxresid.targets.train]\n"


def parsed(toml, name="train"):
    (target,) = parse(f'[tool.jaxresid.targets.{name}]\ntarget = "m:f"\n{toml}\n').targets
    return target


@pytest.mark.parametrize(
    ("toml", "option", "value"),
    [
        ('inputs = "make"', "--inputs", "make"),
        ("concrete-inputs = true", "--concrete-inputs", True),
        ('args = ["f32[2]", "3"]', "--arg", ("f32[2]", "3")),
        ("args = []", "--arg", ()),
        ('kwargs = { x = "f32[2]", n = "3" }', "--kwarg", ("x=f32[2]", "n=3")),
        ("build = false", "--build", False),
        ("argnums = 1", "--argnums", "1"),
        ("argnums = [0, -1]", "--argnums", "0,-1"),
        ("has-aux = true", "--has-aux", True),
        ('mode = "program"', "--mode", "program"),
        ('mesh = "data=4"', "--mesh", "data=4"),
        ('mesh-mode = "explicit"', "--mesh-mode", "explicit"),
        ('on = "tpu:v5e"', "--on", "tpu:v5e"),
        ("batch = 8", "--batch", "8"),
        ("batch = [8, 16]", "--batch", "8,16"),
        ("trips = 100", "--trips", "100"),
        ('budget = "1.5GiB"', "--budget", "1.5GiB"),
        ('budget = "gpu:h100"', "--budget", "gpu:h100"),
    ],
)
def test_a_key_is_the_value_of_its_option(toml, option, value):
    assert parsed(toml).options == {option: value}


def test_targets_are_in_the_order_of_the_file():
    text = '[tool.jaxresid.targets]\nb.target = "m:f"\na = { target = "n.py:C.g" }\n'
    assert [(t.name, t.target) for t in parse(text).targets] == [("b", "m:f"), ("a", "n.py:C.g")]


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("bach = 8", r"^f.toml:3: unknown key `bach` in \[tool.jaxresid.targets.train\]; did you"),
        ("has_aux = true", r"unknown key `has_aux` .*did you mean `has-aux`\?"),
        ("zzz = 1", r"known keys: target, inputs, concrete-inputs, args, kwargs, build, "),
        ("inputs = 3", r'^f.toml:3: `inputs` is the number 3; write inputs = "make_inputs"'),
        ("concrete-inputs = 1", r"f.toml:3: `concrete-inputs` is the number 1"),
        (
            'args = "f32[2]"',
            r'f.toml:3: `args` is the string .*write a list, args = \["f32\[2\]"\]',
        ),
        ("args = [3]", r"f.toml:3: the list `args` contains the number 3"),
        ('kwargs = ["f32[2]"]', r"f.toml:3: `kwargs` is a list; write a table, kwargs = \{ mask"),
        ("kwargs = { n = 3 }", r'f.toml:3: `kwargs.n` is the number 3; write kwargs.n = "bool'),
        ('build = "yes"', r'f.toml:3: `build` is the string "yes"'),
        ('argnums = "0"', r'f.toml:3: `argnums` has the string "0"; write argnums = 0 or \[0, 2\]'),
        ("argnums = [true]", r"f.toml:3: `argnums` has true"),
        ("trips = 0", r"f.toml:3: `trips` has the number 0; write trips = 100"),
        ("trips = [8, 9]", r"f.toml:3: `trips` is a list; write trips = 100"),
        ("argnums = []", r"f.toml:3: the list `argnums` is empty"),
        ("has-aux = 0", r"f.toml:3: `has-aux` is the number 0"),
        ('mode = "steps"', r'f.toml:3: `mode` is the string "steps"; write mode = "auto" or "loss'),
        ("mode = []", r"f.toml:3: `mode` is a list"),
        ("mesh = {}", r'f.toml:3: `mesh` is a table; write mesh = "data=4,model=2"'),
        ('mesh-mode = "x"', r'f.toml:3: `mesh-mode` is .* write mesh-mode = "auto" or "explicit"'),
        ('on = ["cpu"]', r"f.toml:3: `on` is a list"),
        ('budget = "2"', r"f.toml:3: `budget`: '2' has no unit; write 2GiB or 2B"),
        ("budget = 2", r'f.toml:3: `budget` is the number 2; write budget = "12GiB"'),
        ("batch = 0", r"f.toml:3: `batch` has the number 0; write batch = 8, or \[8, 16\] for"),
        ("batch = [8, 1.5]", r"f.toml:3: `batch` has the number 1.5"),
        ("batch = []", r"f.toml:3: the list `batch` is empty"),
        ("budget = 12", r'f.toml:3: `budget` is the number 12; write budget = "12GiB"'),
        ('budget = "12Gib/s"', r"f.toml:3: `budget`: '12Gib/s' is not a size"),
        ('budget = "0"', r"f.toml:3: `budget`: .0. leaves no room"),
    ],
)
def test_what_a_key_refuses_and_where(toml, message):
    with pytest.raises(ConfigError, match=message):
        parse(f'{HEADER}target = "m:f"\n{toml}\n', Path("f.toml"))


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (
            f"{HEADER}batch = 8",
            r"^f.toml:1: \[tool.jaxresid.targets.train\] has no `target`; write",
        ),
        (f"{HEADER}target = 3", r'^f.toml:2: `target` is the number 3; write target = "module:fun'),
        (f'{HEADER}target = "m.py"', r'^f.toml:2: `target` is the string "m.py", which does not'),
        (f'{HEADER}target = "m:"', r"^f.toml:2: `target` is"),
        (
            '[tool.jaxresid.targets]\na = "m:f"',
            r'^f.toml:2: the target `a` is the string "m:f"; write a table \[tool.jaxresid.targets',
        ),
        ('[tool.jaxresid.targets."a:b"]\ntarget = "m:f"', r"^f.toml:1: 'a:b' cannot name a target"),
        ('[tool.jaxresid.targets."-a"]\ntarget = "m:f"', r"^f.toml:1: '-a' cannot name a target"),
        ('[tool.jaxresid.targets.""]\ntarget = "m:f"', r"^f.toml:1: '' cannot name a target"),
    ],
)
def test_what_a_table_refuses_and_where(toml, message):
    with pytest.raises(ConfigError, match=message):
        parse(f"{toml}\n", Path("f.toml"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[tool.jaxresid.targets.a]\nx = 1\n[tool.jaxresid.targets.b]\ny = 1\nx = 1", 5),
        ("[tool.jaxresid.targets.b]\ny = 1\n[tool.other.targets.b]\nx = 1", 1),
        ("[tool.jaxresid.targets.bb]\nx = 1\n[tool.jaxresid.targets]\nb.y = 1\nb.x = 1", 5),
        ("[tool.jaxresid]\ny = 1\ntargets.b = { y = 1, x = 2 }", 3),
        ("tool.jaxresid.y = 1\ntool.jaxresid.targets.b.x = 1", 2),
        ("[ tool . jaxresid . 'targets' . \"b\" ] # x = 1\ny = ['[x]',\n'x']\n'x' = 2", 4),
        ("[tool.jaxresid]\nx = 1", None),
        ("[[tool.other]]\n[tool.jaxresid.targets.b]\nx = 1", 3),
    ],
)
def test_the_line_of_a_key(text, line):
    where = location(Path("f.toml"), text, "targets", "b", "x")
    assert where == ("f.toml" if line is None else f"f.toml:{line}")


def test_the_project_is_that_of_the_nearest_table(tmp_path):
    sub = tmp_path / "a" / "b"
    sub.mkdir(parents=True)
    assert project(sub) == Project()
    file = tmp_path / "pyproject.toml"
    file.write_text(f'[tool.jaxresid]\non = "cpu"\n{HEADER}target = "m:f"\n')
    found = project(sub)
    assert (found.file, found.on) == (file, "cpu")
    assert [target.name for target in found.targets] == ["train"]
    assert found.location("on") == f"{file}:2"
    other = tmp_path / "other.toml"
    other.write_text('[tool.jaxresid]\non = "gpu"\n')
    assert project(sub, config_file=other) == Project(other, "gpu", (), other.read_text())
    assert project(sub, config_file=other, isolated=True) == Project()
    (sub / "pyproject.toml").write_text("[tool.jaxresid]\n")
    assert project(sub).on is None
