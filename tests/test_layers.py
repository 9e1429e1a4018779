"""What may import what. Each promise is tested in a fresh interpreter, and the test is tested."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests import architecture

PACKAGE = Path(__file__).parent.parent / "jaxresid"

# Packages and top-level modules of jaxresid -> what of jaxresid they may import.
ALLOWED = {
    "_version": set(),
    "base": set(),
    "jax_compat": {"base"},
    "results": {"base"},
    "settings": {"base"},
    "targets": {"base"},
    "serialization": {"base", "results"},
    "linter": {"_version", "base", "serialization", "settings"},
    "xla": {"base", "jax_compat", "results", "serialization"},
    "inspector": {"base", "jax_compat", "results", "targets", "xla"},
    "adapters": {"base", "inspector", "jax_compat", "targets"},
    "advice": {
        *("_version", "base", "inspector", "jax_compat", "linter", "results", "serialization"),
        *("settings", "targets", "xla"),
    },
    "revisions": {"base", "results", "serialization", "settings", "targets"},
    "render": {"base", "results"},
    "server": {
        *("_version", "base", "linter", "render", "results", "revisions", "serialization"),
        "settings",
    },
    "cli": {
        *("_version", "adapters", "advice", "base", "inspector", "jax_compat", "linter", "render"),
        *("results", "revisions", "serialization", "server", "settings", "targets", "xla"),
    },
    "testing": {"advice", "base", "results", "settings", "xla"},
    "pytest_plugin": {"testing"},
    "magics": {"advice", "base", "cli", "inspector", "results", "xla"},
    "__main__": {"base", "cli"},
    "__init__": {
        *("_version", "advice", "base", "inspector", "linter", "magics", "results"),
        *("serialization", "settings", "targets", "xla"),
    },
}
# The rooms of packages, lowest first: a room imports itself and those before it.
ROOMS = {
    "base": (
        *("home", "errors", "interrupts", "library_logs", "option_types", "progress"),
        *("regular_files", "standard_streams", "text", "text_files", "urls", "user_cache"),
        *("violations", "crashes"),
    ),
    "serialization": (
        *("residual_table", "dataframe", "decoding", "source_digests", "layouts", "kinds"),
        *("encoding", "files", "latest"),
    ),
    "results": (
        *("display", "result", "interval", "values", "target", "headline", "compiled", "budget"),
        *("report", "listing", "plan", "comparison", "out_of_memory"),
    ),
    "inspector": (
        *(
            "jaxpr",
            "call",
            "trace",
            "cost",
            "program",
            "memory",
            "residuals",
            "few_layers",
            "holes",
        ),
        *("checkpoints", "variants", "findings", "subject", "modules", "lifetimes", "next_step"),
        *("conclusions", "report"),
    ),
    "linter": ("text", "resolve", "fixes", "patterns", "rule", "rules", "run"),
    "advice": ("diff", "timing", "compile", "compare", "plan", "check", "sweep", "oom"),
    "server": (
        *("places", "buffers", "documents", "analysis", "analysis_process", "answers", "linting"),
        *("traced", "commands", "session", "protocol", "transport", "serve"),
    ),
    "xla": (
        "absent_devices",
        "gpus",
        "places",
        "budgets",
        "chosen",
        "job",
        "hlo",
        "logs",
        "stderr",
        "autotuning",
        "compiler",
        "processes",
    ),
}
OUTSIDE = {
    "base": {"_typeshed"},  # for types alone
    "results": {"pandas"},  # for types alone
    "targets": set(),
    "serialization": {"pandas"},
    "settings": {"packaging"},
    "linter": {"libcst"},
    "adapters": set(),
    "advice": {"jax", "numpy", "scipy"},
    "xla": {"distributed", "jax", "jaxlib", "numpy", "psutil"},
    "render": {"rich"},
    "inspector": {"jax", "jaxlib", "numpy"},
    "jax_compat": {"jax", "jaxlib", "numpy"},
    "server": {"lsprotocol", "pygls"},
    "cli": {"click", "rich"},
    "testing": {"pytest"},
    "pytest_plugin": {"pytest"},
    "magics": {"IPython", "click"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module
            if node.module == "jaxresid":
                yield from (f"jaxresid.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, path.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize(("path", "part"), modules(), ids=lambda v: getattr(v, "name", v))
def test_arrows_run_one_way(path, part):
    for name in imports(path):
        top, _, rest = name.partition(".")
        inner = rest.partition(".")[0]
        if top == "jaxresid":
            if inner:
                assert inner in ALLOWED[part] | {part}, f"{path.name} imports {name}"
        elif top not in sys.stdlib_module_names and part in OUTSIDE:
            assert top in OUTSIDE[part], f"{path.name} imports {name}"


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_those_below_them(package):
    order = ROOMS[package]
    for path in sorted((PACKAGE / package).rglob("*.py")):
        room = path.relative_to(PACKAGE / package).with_suffix("").parts[0]
        if room == "__init__":
            continue
        for name in imports(path):
            top, _, inner = name.partition(f"jaxresid.{package}.")
            if not top and inner:
                other = inner.partition(".")[0]
                assert order.index(other) <= order.index(room), f"{path} imports {name}"


def test_every_room_is_known():
    for package, order in ROOMS.items():
        found = {path.with_suffix("").name for path in (PACKAGE / package).iterdir()}
        assert set(order) == found - {"__init__", "__pycache__"}


@pytest.mark.integration
def test_nothing_imports_in_circles():
    modules = architecture.module_names()
    assert architecture.circles(architecture.arrows(modules)) == []
    assert architecture.circles(architecture.between_rooms(modules)) == []


def test_a_circle_is_seen():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert architecture.circles(graph) == [["a", "b", "c"]]


@pytest.mark.integration
def test_jax_internals_stay_in_one_package():
    for path, _ in modules():
        if path.parent.name != "jax_compat":
            assert not any(name.startswith("jax._src") for name in imports(path)), path


def loaded_by(code):
    script = (
        f"import sys\n{code}\nprint('modules:', *sorted(m for m in sys.modules if '.' not in m))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("modules:")[2].split())


@pytest.mark.integration
@pytest.mark.parametrize(
    "code",
    [
        "import jaxresid",
        "import jaxresid.cli, jaxresid.render.report.text, jaxresid.render.report.split\n"
        "import jaxresid.targets.targets",
        "import jaxresid\njaxresid.load",
        "from jaxresid.cli.main import run\nrun(['report', '--help'])",
        "from jaxresid.cli.main import run\nrun(['--version'])",
        "from jaxresid.cli.main import run\nrun(['split', '-h'])",
        "from jaxresid.cli.main import run\nrun(['lint', 'fixtures/inspect'])",
        "from jaxresid.cli.main import run\nrun(['rules'])",
        "from jaxresid.cli.main import run\nrun(['explain', 'JXR801'])",
        "from jaxresid.cli.main import run\nrun(['check', '-h'])",
        "from jaxresid.cli.main import run\nrun(['compare', '-h'])",
        "from jaxresid.cli.main import run\nrun(['plan', 'm:f', '--budget', 'much'])",
        "from jaxresid.cli.main import run\nrun(['compile', 'm:f', '--on', 'v5e:2x4'])",
        "from jaxresid.cli.main import run\nrun(['compile', '--list-places'])",
        "from jaxresid.cli.main import run\nrun(['oom', 'tests/data/logs/t5x-870.txt'])",
    ],
)
def test_no_jax_before_it_is_needed(code):
    assert not {"jax", "jaxlib", "libcst", "numpy"} & loaded_by(code)


LINT = """
import pathlib, tempfile
from jaxresid.cli.main import run
file = pathlib.Path(tempfile.mkdtemp()) / "model.py"
file.write_text({source!r})
run(["lint", "--isolated", "--fix", "--unsafe-fixes", str(file)])
"""


def test_the_linter_reads_source_without_jax():
    source = "import jax\n\n\n@jax.checkpoint(policy=None)\ndef f(x):\n    return x\n"
    modules = loaded_by(LINT.format(source=source))
    assert not {"jax", "jaxlib", "numpy", "rich", "flax"} & modules


@pytest.mark.parametrize(
    "source",
    [
        "import jax\nf = jax.checkpoint\n",
        "import jax\nf = getattr(jax.checkpoint_policies, 'dots_saveable', None)\n",
    ],
)
def test_libcst_is_for_newer_grammar_alone(source):
    assert "libcst" not in loaded_by(LINT.format(source=source))


@pytest.mark.integration
def test_that_the_probe_sees_jax():
    assert "jax" in loaded_by("import jaxresid\njaxresid.inspect\nimport jax")


def test_the_package_itself_is_light():
    assert not {"rich", "click"} & loaded_by(
        "import jaxresid, jaxresid.results, jaxresid.targets.specs"
    )


def test_the_linter_does_not_load_what_only_a_trace_can_tell():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys\n{LINT.format(source='import jax')}\nprint(*sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "jaxresid.linter.rules" in done.stdout
    assert "jaxresid.advice" not in done.stdout
    assert "jaxresid.inspector" not in done.stdout
