"""Modules beside a target are the target's: in a fresh interpreter, as imports are remembered."""

import subprocess
import sys

NAMES = ("colorsys", "fractions", "statistics", "json", "target")
PROGRAM = """
import os, sys
from jaxresid.targets.targets import load, load_module

load("model.py:function").fun()
sys.path.append(os.path.abspath("environment"))
import installed
import fractions
print(load_module("target").__file__, *(sys.modules[name].__file__ for name in {names}), sep="\\n")
"""


def test_each_imports_its_own(tmp_path):
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "model.py").write_text("def function():\n    import statistics\n")
    environment = tmp_path / "environment"
    environment.mkdir()
    (environment / "installed.py").write_text("import colorsys, json\n")
    (environment / "target.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM.format(names=NAMES[:4])],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    target, *others = done.stdout.splitlines()
    # What is named is the project's, whatever is installed under its name.
    assert target == str(tmp_path / "target.py")
    ours = [
        name for name, file in zip(NAMES, others, strict=False) if file.startswith(str(tmp_path))
    ]
    assert ours == ["statistics"]
