"""What becomes of a request before it is a question."""

import click
import pytest

from jaxresid.base.errors import InputsError
from jaxresid.cli.calls import maker_of
from jaxresid.cli.options.request import Request
from jaxresid.cli.options.words import typed_arguments, words_of
from jaxresid.cli.resolve import provide_devices, resolve

MODULE = """
def loss(x, *, scale=1.0):
    return (x * scale).sum()

def loss_inputs(batch=4):
    import jax.numpy as jnp
    return (jnp.ones((batch, 2)),)

def other():
    return (lambda x: x.sum()), loss_inputs()
"""


@pytest.fixture
def request_of(tmp_path):
    """A function that makes a request about a function of a file."""
    file = tmp_path / "resolved_here.py"
    file.write_text(MODULE)

    def make(name, arg=(), kwarg=(), build=False, **more):
        return Request(f"{file}:{name}", None, False, arg, kwarg, build, None, False, **more)

    return make


@pytest.mark.parametrize(
    ("before", "flags", "meshes", "after"),
    [
        (None, "", ["data=4,model=2", "data=2"], "8"),
        ("2", "", ["data=4"], "4"),
        ("16", "", ["data=4"], "16"),
        (None, "--xla_force_host_platform_device_count=8", ["data=8"], None),
        (None, "", [], None),
    ],
)
def test_devices_of_meshes(monkeypatch, before, flags, meshes, after):
    environment = {} if before is None else {"JAX_NUM_CPU_DEVICES": before}
    environment["XLA_FLAGS"] = flags
    monkeypatch.setattr("os.environ", environment)
    provide_devices(meshes)
    assert environment.get("JAX_NUM_CPU_DEVICES") == after
    assert environment.get("JAX_PLATFORMS") == ("cpu" if meshes else None)


def test_a_question_has_what_is_requested(request_of):
    question = resolve(request_of("loss", arg=("f32[3]",), kwarg=("scale=f32[]",), trips=7))
    assert [(x.shape, x.dtype) for x in question.args] == [((3,), "float32")]
    assert question.kwargs["scale"].shape == ()
    assert (question.mode, question.trips, question.on) == ("loss", 7, None)


def test_a_keyword_has_one_spec(request_of):
    with pytest.raises(InputsError, match="--kwarg gives scale twice"):
        resolve(request_of("loss", kwarg=("scale=f32[]", "scale=f32[1]")))


def test_what_makes_the_inputs(request_of):
    assert maker_of(request_of("loss")).__name__ == "loss_inputs"
    assert maker_of(request_of("other", build=True)).__name__ == "other"
    assert maker_of(request_of("loss", arg=("f32[3]",))) is None
    assert maker_of(request_of("other")) is None


@click.command()
@click.option("-s", "--size", type=str, callback=lambda context, parameter, value: 2048)
@click.option("--count", type=int)
@click.option("--name", multiple=True)
@click.option("--on/--off", default=False)
@click.option("--flag", is_flag=True)
@click.option("--left-out")
def command(**values):
    """Return both kinds of words."""
    names = {*values} - {"left_out"}
    context = click.get_current_context()
    return typed_arguments(context, names), words_of(context, names, {**values, "count": 9})


def test_words_mean_what_was_typed():
    line = ["-s", "2KiB", "--count", "3", "--name", "a", "--name", "b", "--flag", "--left-out", "x"]
    single, pairs = command.main(line, standalone_mode=False)
    assert single == ("--size=2048B", "--count=3", "--name=a", "--name=b", "--flag")
    assert pairs == (
        *("--size", "2048B", "--count", "9", "--name", "a", "--name", "b"),
        "--flag",
    )
    assert command.main([], standalone_mode=False) == ((), ())
