"""What the engine does around the rules."""

import pytest

from jaxresid.linter.engine import Settings, lint_bytes
from jaxresid.linter.project import Module, Project
from jaxresid.linter.rules import all_rules

RULES = tuple(r for r in all_rules() if r.is_default())
SETTINGS = Settings(RULES, {r.code: r.name for r in all_rules()})
WHOLE = """\
import jax


def loss(w):
    return (w * w).sum()


def step(w):
    return jax.grad(jax.checkpoint(loss))(w)
"""


def found(source, path="module.py"):
    return lint_bytes(source.encode(), path, SETTINGS).violations


@pytest.mark.parametrize("path", ["test_remat.py", "pkg/remat_test.py", "tests/conftest.py"])
def test_placement_is_an_info_in_a_test_module(path):
    (there,) = found(WHOLE, path)
    (elsewhere,) = found(WHOLE, "tests/model.py")
    assert (there.code, there.severity) == ("JXR101", "info")
    assert (elsewhere.code, elsewhere.severity) == ("JXR101", "warning")


@pytest.mark.parametrize(
    "test",
    [
        "def test(f):\n    with pytest.raises(TypeError):\n        @jax.checkpoint(policy=None)\n"
        "        def g(x):\n            return x\n",
        "class T(TestCase):\n    def test(self, f):\n"
        "        with self.assertRaisesRegex(TypeError, 'x'):\n"
        "            jax.checkpoint(f, 1)\n",
        "class T(TestCase):\n    def test(self, f):\n"
        "        self.assertRaises(TypeError, lambda: jax.checkpoint(f, 1))\n",
    ],
)
def test_a_mistake_that_is_expected_to_raise_is_meant(test):
    source = f"import jax\nimport pytest\nfrom unittest import TestCase\n\n\n{test}"
    assert found(source) == ()
    meant = source.replace("pytest.raises", "open").replace("assertRaises", "run")
    assert {v.severity for v in found(meant)} == {"error"}


def test_a_suppression_of_a_project_rule_is_unused_only_where_the_project_is_seen(tmp_path):
    source = "import jax\n\n\ndef f(p):\n    return p  # jaxresid: ignore[JXR301]\n"
    path = tmp_path / "module.py"
    path.write_text(source)
    whole = Project(lambda: [Module(path, "module")], complete=True)
    part = Project(lambda: [Module(path, "module")])
    codes = [
        [v.code for v in lint_bytes(source.encode(), "module.py", SETTINGS, project=p).violations]
        for p in (whole, part, None)
    ]
    assert codes == [["JXR001"], [], []]
