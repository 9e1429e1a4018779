"""The two calls of the public functions: options in the first, the caller's arguments next."""

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import tomllib
import types
import typing
from pathlib import Path

import click
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import f32

import jaxresid
from jaxresid.base import option_types
from jaxresid.base.errors import InputsError
from jaxresid.cli import cli
from jaxresid.inspector.call.question import Question
from jaxresid.xla.job import Compilation
from tests.where import ROOT

FUNCTIONS = {
    "inspect": {},
    "compare": {},
    "plan": {"budget": "1MiB"},
    "check": {},
    "compile": {"on": "cpu"},
    "sweep": {"on": "cpu", "policies": "none"},
}
# Of the caller's function, with names that are options here.
OWN = {
    "mode": "eval",
    "mesh": None,
    "argnums": "all",
    "policies": ("a",),
    "on": "off",
    "budget": 3,
    "fun": "ny",
    "batches": 7,
    "args": 1,
    "kwargs": 2,
    "self": True,
}
X = jnp.ones((4, 4))
every = pytest.mark.parametrize("name", FUNCTIONS)


def first(name, fun, **options):
    return getattr(jaxresid, name)(fun, **FUNCTIONS[name], **options)


def loss(w, x):
    return jnp.sum(jnp.sin(x @ w))


@pytest.fixture
def heard():
    """A function that remembers the keywords that reach it."""
    said = []

    def fun(w, x, **given):
        said.append(given)
        return loss(w, x)

    return fun, said


@pytest.fixture
def no_compiler(monkeypatch):
    """Compiles nothing, at once."""

    def compiled(jobs, **_):
        yield from ((i, Compilation(error="not compiled")) for i, _ in enumerate(jobs))

    monkeypatch.setattr("jaxresid.xla.processes.pool.compile_jobs", compiled)
    monkeypatch.setattr("jaxresid.advice.sweep.sweep.compile_jobs", compiled)


@every
def test_keywords_of_the_caller_reach_the_function(name, heard, no_compiler):
    fun, said = heard
    assert first(name, fun)(X, X, **OWN) is not None
    assert said
    assert all(given == OWN for given in said)


def test_they_reach_it_at_every_batch_size(heard, no_compiler):
    fun, said = heard
    sweep = jaxresid.sweep(fun, on="cpu", policies="none", batches=[2, 3])
    sweep(lambda batch: (f32(4, 4), f32(batch, 4)), **OWN)
    assert all(given == OWN for given in said)
    sweep(lambda batch: jaxresid.Inputs((f32(4, 4), f32(batch, 4)), {"mode": batch}), on=1)
    assert {tuple(given.items()) for given in said[-2:]} <= {
        (("mode", 2), ("on", 1)),
        (("mode", 3), ("on", 1)),
    }
    with pytest.raises(InputsError, match="mode is given twice"):
        sweep(lambda batch: jaxresid.Inputs((X, X), {"mode": batch}), mode="eval")


def test_a_sweep_without_batches_takes_the_arguments(no_compiler):
    found = jaxresid.sweep(loss, on="cpu", policies="none")(X, X)
    assert (found.batches, found.policies) == ((), ("none",))
    with pytest.raises(InputsError, match="takes one function, batch size -> the positional"):
        jaxresid.sweep(loss, on="cpu", batches=[2])(X, X)


@every
def test_the_old_shape_says_the_new_one(name):
    shape = re.escape(f"in a second call: jaxresid.{name}(fun")
    with pytest.raises(InputsError, match=shape) as caught:
        getattr(jaxresid, name)(loss, X, X, **FUNCTIONS[name])
    assert "\n" not in str(caught.value)
    with pytest.raises(InputsError, match=shape):
        first(name, loss, x=X)
    with pytest.raises(InputsError, match=r"no option 'has_auxx'; did you mean `has_aux`\?"):
        first(name, loss, has_auxx=True)


@every
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "train"}, "mode must be one of auto, loss, program, not 'train'"),
        ({"mode": []}, r"mode must be one of .* not \[\]"),
        ({"on": "gpu:h1000"}, r"unknown GPU 'h1000'; did you mean `h100`\?"),
        ({"on": "cpus"}, r"'cpus' is not a place.*did you mean `cpu`\?"),
        (
            {"argnums": "w"},
            r"argnums must be one position or several, such as 0 or \(0, 2\), not 'w'",
        ),
        ({"argnums": 1.0}, "argnums must be one position"),
        ({"argnums": True}, "argnums must be one position"),
        ({"argnums": (0, "x")}, "argnums must be one position"),
        ({"argnums": ()}, "argnums selects no argument"),
        ({"argnums": 0, "mode": "program"}, "argnums is for mode loss"),
        ({"has_aux": True, "mode": "program"}, "has_aux is for mode loss"),
    ],
)
def test_an_option_is_refused_in_the_first_call(name, options, said):
    with pytest.raises(InputsError, match=said) as caught:
        getattr(jaxresid, name)(loss, **{**FUNCTIONS[name], **options})
    assert "\n" not in str(caught.value)


@every
def test_what_is_no_function_is_refused(name):
    with pytest.raises(InputsError, match="the target must be a function, not a value of type int"):
        first(name, 3)


@pytest.mark.parametrize(
    ("argnums", "differentiated"),
    [
        (0, ("w",)),
        (-1, ("x",)),
        ([0, 1], ("w", "x")),
        ((1, -2), ("w", "x")),
        (np.int64(1), ("x",)),
        (np.array(-2), ("w",)),
        (np.array([0, 1]), ("w", "x")),
        (range(2), ("w", "x")),
        ((n for n in [1]), ("x",)),
    ],
)
def test_argnums(argnums, differentiated):
    ask = jaxresid.inspect(loss, argnums=argnums)
    for _ in range(2):
        assert ask(X, X).target.differentiated == differentiated


@every
@pytest.mark.parametrize("argnums", [2, -3, np.int32(2)])
def test_argnums_out_of_range(name, argnums):
    said = rf"argnums {argnums} is out of range: the call has 2 positional arguments \(0 w, 1 x\)"
    with pytest.raises(InputsError, match=said):
        first(name, loss, argnums=argnums)(X, X)


@every
def test_what_the_first_call_returns_looks_like_the_function(name):
    ask = first(name, loss)
    assert (ask.__name__, ask.__module__) == (f"{name}(loss)", "jaxresid")
    assert ask.__qualname__ == f"{name}(loss)"
    assert f"{name}(loss)" in repr(ask)
    assert "`loss`" in ask.__doc__
    signature = inspect.signature(ask)
    assert list(signature.parameters) == ["w", "x"]
    promised = typing.get_args(typing.get_type_hints(getattr(jaxresid, name))["return"])[1]
    shown = getattr(promised, "__name__", "") if isinstance(promised, type) else ""
    assert shown in str(signature.return_annotation)


def test_any_callable_can_be_shown():
    class Odd:
        def __call__(self, x):
            return jnp.sum(x)

        def __getattr__(self, name):
            raise AttributeError(name)

    for fun in (Odd(), functools.partial(loss, X), jax.jit(loss), jnp.matmul):
        assert jaxresid.inspect(fun).__name__.startswith("inspect(")


def test_the_same_callable_asks_again():
    ask = jaxresid.inspect(loss)
    assert ask(X, X) == ask(X, X)
    assert ask(f32(4, 4), f32(8, 4)).peak.nbytes > ask(X, X).peak.nbytes


def test_check_takes_a_mesh(jax_version):
    if jax_version < (0, 7, 2):
        pytest.skip("an AbstractMesh is no context before 0.7.2")
    explicit = jax.sharding.AxisType.Explicit
    mesh = jax.sharding.AbstractMesh((4,), ("data",), axis_types=(explicit,))

    def wasted(w, x):
        split = jax.sharding.reshard(x, jax.sharding.PartitionSpec("data"))  # of the mesh around
        return jnp.sum(jax.checkpoint(lambda w, x: jnp.sin(x @ w))(w, split))

    args = f32(64, 64), f32(256, 64)
    kept = 2 * 256 * 64 * 4 // 4  # what is split and the cosine, of one device of four
    (found,) = jaxresid.check(wasted, mesh=mesh)(*args)
    assert (found.code, found.measured["kept_without_nbytes"]) == ("JXR101", kept)
    with pytest.raises(jaxresid.JaxresidError, match="mesh"):
        jaxresid.check(wasted)(*args)


# -- words, names, the version -------------------------------------------------------------------


def options_of(command):
    return {p.name: p.type for p in command.params if isinstance(p.type, click.Choice)}


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("mode", option_types.Mode),
        ("mesh_mode", option_types.MeshMode),
        ("group_by", option_types.GroupBy),
    ],
)
def test_choices_are_the_words_of_the_types(option, word):
    context = click.Context(cli)
    commands = {
        name: options_of(cli.get_command(context, name)) for name in cli.list_commands(context)
    }
    found = {name: tuple(c[option].choices) for name, c in commands.items() if option in c}
    if option == "mode":  # a program has no two passes to show
        assert found.pop("split") == ("auto", "loss")
    assert found
    assert set(found.values()) == {typing.get_args(word)}


@every
def test_the_words_are_those_of_the_signature(name):
    hints = typing.get_type_hints(getattr(jaxresid, name))
    assert hints["mode"] == jaxresid.Mode
    parameters = inspect.signature(getattr(jaxresid, name)).parameters
    assert next(iter(parameters)) == "fun"
    assert {p.kind for p in list(parameters.values())[1:]} == {inspect.Parameter.KEYWORD_ONLY}
    asked = {f.name: f.default for f in dataclasses.fields(Question)}
    for option in ("argnums", "has_aux", "mode", "on", "mesh"):
        assert parameters[option].default == asked[option]


def mentioned(hint):
    """Every class of this package, and every choice of words, inside an annotation."""
    if hint in PUBLIC_ALIASES:
        yield hint
    for inner in typing.get_args(hint):
        if isinstance(inner, list):  # of a Callable
            for each in inner:
                yield from mentioned(each)
        elif not isinstance(inner, str):
            yield from mentioned(inner)
    if isinstance(hint, type) and hint.__module__.startswith("jaxresid"):
        yield hint


PUBLIC_ALIASES = [getattr(jaxresid, n) for n in ("Mode", "GroupBy", "Severity")]


def parts(value):
    """What the annotations of a function, of a value's fields and of its methods mention."""
    namespace = {"pandas": types.SimpleNamespace(DataFrame=object)}  # may not be installed
    if inspect.isfunction(value):
        hooks = [inspect.unwrap(value)]
    else:
        hooks = [m for n, m in vars(value).items() if n[0] != "_" and inspect.isfunction(m)]
        hooks += [m.fget for m in vars(value).values() if isinstance(m, property)]
        hooks += [value] if dataclasses.is_dataclass(value) else []
    for hook in hooks:
        module = inspect.getmodule(hook)
        # What is imported for type checkers alone.
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxresid"):
                source = importlib.import_module(node.module)
                namespace |= {a.asname or a.name: getattr(source, a.name) for a in node.names}
        for hint in typing.get_type_hints(hook, {**namespace, **vars(module)}).values():
            yield from mentioned(hint)


@pytest.mark.integration
def test_what_signatures_mention_is_exported():
    exported = [getattr(jaxresid, name) for name in jaxresid.__all__]
    wanted = [v for v in exported if inspect.isfunction(v)]
    seen = set()
    while wanted:
        value = wanted.pop()
        # The configuration is made by reading a file: what it is made of is its own affair.
        if (
            value is jaxresid.Config
            or value in seen
            or not isinstance(value, type | types.FunctionType)
        ):
            continue
        seen.add(value)
        for part in parts(value):
            assert part in exported, f"{part} is mentioned by {value}"
            wanted.append(part)
    assert {jaxresid.Report, jaxresid.Location, jaxresid.Checkpoint, jaxresid.Span} <= seen


def test_type_checkers_read_the_same_names():
    tree = ast.parse((ROOT / "jaxresid/__init__.py").read_text())
    (block,) = (n for n in tree.body if isinstance(n, ast.If))
    imported = [n for n in (*tree.body, *block.body) if isinstance(n, ast.ImportFrom)]
    names = {alias.asname: node.module for node in imported for alias in node.names if alias.asname}
    assert all(alias.asname in (None, alias.name) for n in imported for alias in n.names)
    assert names == jaxresid._HOME
    assert set(jaxresid.__all__) == set(names)
    assert len(jaxresid.__all__) == len(set(jaxresid.__all__))


def test_the_version_has_one_source():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    file = project["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{jaxresid.__version__}"' in (ROOT / file).read_text()
