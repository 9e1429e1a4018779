"""JAX is patched, and its frames are read, in `jax_compat` alone."""

import ast
import threading
import types

import pytest

from jaxresid import jax_compat
from jaxresid.jax_compat.patches import in_this_thread
from tests.where import ROOT

PACKAGE = ROOT / "jaxresid"
# Modules that read frames which are none of JAX's, with whose they are.
FRAMES_OF_OTHERS = {
    "advice/plan/emit/keras.py": "Keras' layers, while a model of the user's is called",
    "advice/plan/source/observed_calls.py": "the user's functions, while they are called",
    "targets/project_folders.py": "what imports a module",
}
FRAME_ATTRIBUTES = {"f_back", "f_locals", "_getframe", "currentframe"}


def chain(node):
    """The names of `a.b.c`, the first one None where that is no name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else None, *reversed(parts)]


def names_of_jax(tree):
    """The names that a module has for JAX, its modules, and what it takes from them."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for alias in node.names:
                if (module or alias.name).partition(".")[0] in ("jax", "jaxlib"):
                    names.add(alias.asname or alias.name.partition(".")[0])
    assigned = [
        (target.id, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    for _ in range(3):
        for name, value in assigned:
            is_import = isinstance(value, ast.Call) and chain(value.func)[-1] == "import_jax"
            if is_import or chain(value)[0] in names or chain(value)[1:][-1:] == ["primitive"]:
                names.add(name)
    return names


def patches(source):
    """The lines of a module that set an attribute of JAX."""
    tree = ast.parse(source)
    names = names_of_jax(tree)

    def is_of_jax(owner):
        return owner[0] in names or owner[-1] == "primitive"

    for node in ast.walk(tree):
        targets = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and chain(node.func)[-1] in ("setattr", "delattr"):
            targets = [ast.Attribute(node.args[0], "any")]
        for target in targets:
            if isinstance(target, ast.Attribute) and is_of_jax(chain(target)[:-1]):
                yield node.lineno


def reads_of_frames(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in FRAME_ATTRIBUTES:
            yield node.lineno


MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "jax_compat" not in p.parts)


def test_no_other_module_patches_jax():
    found = [(p.name, line) for p in MODULES for line in patches(p.read_text())]
    assert found == []


def test_no_other_module_reads_frames_of_jax():
    found = {
        p.relative_to(PACKAGE).as_posix() for p in MODULES if any(reads_of_frames(p.read_text()))
    }
    assert found == FRAMES_OF_OTHERS.keys()


@pytest.mark.parametrize(
    "source",
    [
        "import jax\njax.vjp = None",
        "from jax.interpreters import ad\nad.linearize = None",
        "from jaxlib import xla_client as xc\nsetattr(xc, name, None)",
        "jax = jax_compat.import_jax()\nmesh = jax.sharding.AbstractMesh\nmesh.devices = None",
        "primitive = eqn.primitive\nprimitive.bind = None",
        "eqn.primitive.bind = None",
        "import jax\ndel jax.vjp",
        "import jax\njax.vjp: object = None",
    ],
)
def test_a_patch_is_seen(source):
    assert list(patches(source)) == [source.count("\n") + 1]


@pytest.mark.parametrize(
    "source", ["import jax\nself.jax = jax.vjp", "jaxpr = eqn.params\njaxpr.x = 1"]
)
def test_other_assignments_are_no_patches(source):
    assert list(patches(source)) == []


def test_what_an_object_has_of_its_class_it_has_of_its_class_again():
    class Owner:
        def bind(self):
            return "plain"

    owner, module = Owner(), types.ModuleType("module")
    module.bind = "own"
    with jax_compat.patched({(owner, "bind"): lambda: "new", (module, "bind"): "new"}):
        assert (owner.bind(), module.bind) == ("new", "new")
    assert (owner.bind(), vars(owner), module.bind) == ("plain", {}, "own")


def test_a_patch_holds_in_one_thread():
    seen = []
    function = in_this_thread(lambda: seen.append("plain"), lambda: seen.append("new"))
    function()
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
    assert seen == ["new", "plain"]
