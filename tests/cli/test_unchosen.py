"""TARGET without a function, and commands that there are not."""

import sys

import pytest

SOURCE = """raise RuntimeError("imported")
def norm(x, gain): ...
def loss(params, batch, rate=0.1): ...
def loss_inputs(): ...
"""
TRACING = ("report", "split", "check", "plan", "compare", "compile", "sweep")


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kudu.py").write_text(SOURCE)
    return tmp_path


@pytest.fixture
def fails(call):
    def fails(*argv):
        code, out, err = call(*argv)
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        assert "kudu" not in sys.modules
        return err

    return fails


@pytest.mark.parametrize("command", TRACING)
def test_a_file_lists_its_functions(fails, command):
    assert (
        fails(command, "kudu.py")
        == f"""jaxresid: error: kudu.py names no function; there are (the file was read, not run):
  loss  (params, batch, rate=...), inputs from loss_inputs()
  norm  (x, gain)
write, for example:
  jaxresid {command} kudu.py:loss
"""
    )


def test_how_one_without_inputs_is_called(fails, project):
    (project / "kudu.py").write_text(SOURCE.replace("def loss_inputs(): ...", ""))
    said = fails("report", "kudu")
    assert "\nwrite, for example, kudu:loss --arg SPEC --arg SPEC, with a SPEC such as" in said
    assert " or define loss_inputs(), " in " ".join(said.split())


def test_lines_fit_and_long_lists_end(fails, project):
    long = ", ".join(f"parameter_{n}" for n in range(20))
    (project / "kudu.py").write_text("".join(f"def f{n}({long}): ...\n" for n in range(15)))
    said = fails("report", "kudu.py:").splitlines()
    assert "  and 3 more" in said
    listed = [line for line in said if line.startswith("  f")]
    assert len(listed) == 12
    assert max(map(len, listed)) < 80


def test_a_builder_and_nothing_at_all(fails, project):
    (project / "kudu.py").write_text("def make(): return (lambda x: x), (1,)\n")
    assert "\n  jaxresid plan kudu.py:make --build\n" in fails("plan", "kudu.py")
    (project / "kudu.py").write_text("")
    assert "defines none with parameters" in fails("plan", "kudu.py")
    (project / "kudu.py").write_text("def f(")
    assert "kudu.py is not Python" in fails("plan", "kudu.py")


def test_a_configured_target_of_that_name_goes_before(fails, project):
    table = '[tool.jaxresid.targets.kudu]\ntarget = "eland.py:loss"\n'
    (project / "pyproject.toml").write_text(table)
    assert "no such file: eland.py" in fails("report", "kudu")


def test_no_target_says_what_to_write(fails, project):
    assert "Write the function, as in train.py:loss; of a file alone, " in fails("report")
    table = '[tool.jaxresid.targets.big]\ntarget = "kudu.py:loss"\n'
    (project / "pyproject.toml").write_text(table)
    assert ", or a target of pyproject.toml: big; of" in fails("plan")
    (project / "pyproject.toml").write_text("[tool.jaxresid")
    assert "Write the function" in fails("plan")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("reprot", "no command 'reprot'; did you mean `report`?"),
        ("Lint", "did you mean `lint`?"),
        ("kudu.py:loss", "'kudu.py:loss' is no command; write: jaxresid report kudu.py:loss"),
        ("kudu.py", "write: jaxresid report kudu.py"),
        ("xyzzy", "no command 'xyzzy'; jaxresid --help lists them"),
    ],
)
def test_a_mistyped_command(fails, word, said):
    assert fails(word).endswith(f"Error: {said}\n") or said in fails(word)


def test_help_is_one_screen_and_names_every_command(call):
    from jaxresid.cli import SECTIONS

    code, out, _ = call("--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for commands in SECTIONS.values():
        for name, what in commands.items():
            assert f"  {name} " in out
            assert what in out  # on one line
