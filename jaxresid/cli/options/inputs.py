"""Define the options that say what to inspect, shared by every command that traces."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, get_args

import click

from jaxresid.base.option_types import MeshMode, Mode
from jaxresid.cli.completion.values import references
from jaxresid.cli.help import Group, option, options
from jaxresid.cli.main import tell
from jaxresid.cli.options import batches, named_targets
from jaxresid.cli.options.places import place_options
from jaxresid.cli.options.request import Request
from jaxresid.cli.options.words import words_of


class _ToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell(f"jaxresid: {record.levelname.lower()}: {self.format(record)}")


def _logged(context: click.Context, parameter: click.Parameter, level: str | None) -> None:
    if level is None:
        return
    logger, handler = logging.getLogger("jaxresid"), _ToStderr()
    before = logger.level
    logger.setLevel(level.upper())
    logger.addHandler(handler)

    def undo() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    context.call_on_close(undo)


def _argnums(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of positions; write e.g. 0,2") from None


mode_option = option(
    "--mode",
    group=Group.INPUTS,
    type=click.Choice(get_args(Mode)),
    default="auto",
    show_default=True,
    help="loss: differentiate TARGET. program: take TARGET as it is, with the gradients that it"
    " takes itself, if any. auto: loss if TARGET returns one real scalar (and auxiliary data)"
    " of float arguments that it does not update, else program.",
)
# For commands that say what the program costs.
trips_option = option(
    "--trips",
    group=Group.INPUTS,
    type=click.IntRange(min=1),
    metavar="N",
    help="How often a while loop runs whose number of trips the program decides, such as the"
    " steps of a solver: FLOPs and times are then those of N trips.  [default: the bound that"
    " its condition has, such as max_steps; 1 without one]",
)
# What TARGET is called with, and --log-level, as what is logged is what becomes of the target.
input_options = options(
    option(
        "--log-level",
        group=Group.GENERAL,
        type=click.Choice(("debug", "info", "warning", "error")),
        expose_value=False,
        callback=_logged,
        help="Say on stderr what is tried and what is left out, and why: error has bugs of jaxresid"
        " with their tracebacks, warning also programs that JAX could not trace again, info also"
        " the findings that were looked for, debug each rewrite.",
    ),
    option(
        "--arg",
        group=Group.INPUTS,
        multiple=True,
        metavar="SPEC",
        help="One positional argument: f32[64,512], key[], '{\"w\": f32[4,4]}', or a Python"
        " literal, which is static; with --mesh f32[64,512]@data,model. Repeat for more.",
    ),
    option(
        "--kwarg",
        group=Group.INPUTS,
        multiple=True,
        metavar="NAME=SPEC",
        help="One keyword argument. Repeat for more.",
    ),
    option(
        "--inputs",
        group=Group.INPUTS,
        shell_complete=references,
        metavar="REF",
        help="The function that returns the inputs: module:attr, or a name in the target's module."
        " It is called under jax.eval_shape.  [default: <fn>_inputs or example_inputs, if it"
        " exists]",
    ),
    option(
        "--concrete-inputs",
        group=Group.INPUTS,
        is_flag=True,
        help="Call the --inputs function without tracing it, if it cannot be traced.",
    ),
    option(
        "--build",
        group=Group.INPUTS,
        is_flag=True,
        help="TARGET takes no arguments and returns (fun, args) or (fun, args, kwargs).",
    ),
    option(
        "--loss",
        group=Group.INPUTS,
        metavar="LOSS",
        help="Of a framework's model (nnx:train.py:Decoder(512), linen:...): mean of what it"
        " returns, cross-entropy or squared-error with the last --arg, or module:function, called"
        " with the model and the inputs.  [default: mean]",
    ),
    option(
        "--optimizer",
        group=Group.INPUTS,
        metavar="OPTAX",
        help="Of a framework's model: ask about the training step with this optimizer, an"
        " expression of optax such as 'adamw(1e-3)', or module:function.",
    ),
    option(
        "--method",
        group=Group.INPUTS,
        metavar="NAME",
        help="Of a framework's model: call this method in the place of the model itself, such as"
        " decode. With --mode program it is taken as it is, without a loss.",
    ),
    option(
        "--init-arg",
        group=Group.INPUTS,
        multiple=True,
        metavar="SPEC",
        help="Of a Linen module: an argument that it is initialised with, where it is called with"
        " another shape, in order. A cache is as long as these.",
    ),
    option(
        "--batch",
        group=Group.INPUTS,
        callback=batches.parsed,
        metavar="[NAME=]N",
        help="The batch size: it replaces the word batch in a SPEC, such as f32[batch,2048], or is"
        " passed as batch (or batch_size) to the function that makes the inputs; context=4096 is a"
        " size of that name. Several for plan and sweep: N,... or 8..64, which doubles.",
    ),
    option(
        "--mesh",
        group=Group.INPUTS,
        multiple=True,
        metavar="AXIS=SIZE,...",
        help="Split the arrays over a mesh of devices, which need not be present: data=4,model=2."
        " Bytes are then those of one device. plan takes several to choose from: repeat it.",
    ),
    option(
        "--mesh-mode",
        group=Group.INPUTS,
        type=click.Choice(get_args(MeshMode)),
        help="auto: the compiler decides how computed values are split. explicit: their types do,"
        " as with axes of jax.sharding.AxisType.Explicit.  [default: auto]",
    ),
    option(
        "--argnums",
        group=Group.INPUTS,
        metavar="N,...",
        callback=_argnums,
        help="The positional arguments to differentiate.  [default: every float or complex leaf]",
    ),
    option(
        "--has-aux", is_flag=True, group=Group.INPUTS, help="The function returns (output, aux)."
    ),
)


def function_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add TARGET and its options; the command receives them as one `Request`."""

    @functools.wraps(command)
    def wrapped(**values: Any) -> Any:
        request, others = own_options(click.get_current_context(), values)
        return command(request, **others)

    return named_targets.target_argument(input_options(wrapped))


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --mode, how the target is judged, the options of places and of `function_options`."""
    return function_options(place_options(mode_option(command)))


def own_options(
    context: click.Context, values: Mapping[str, Any]
) -> tuple[Request | None, dict[str, Any]]:
    """Return what is requested, and the values of the command's other options.

    The request is None where the command takes none for all that the configuration names, and none
    is given.
    """
    others = named_targets.without_replaced(context, values)
    target = others.pop("target")
    names = [name for name in Request.__dataclass_fields__ if name in others]
    own = {name: others.pop(name) for name in names}
    if target is None:
        return None, others
    if origin := named_targets.place_origin(context):
        own["on_origin"] = origin
    request = Request(target.text, folder=target.folder, name=target.name, **own)
    # Not all of the commands that are named next count trips.
    shared = [name for name in names if name != "trips"]
    words = (request.name or request.target, *words_of(context, shared, own))
    return replace(request, words=words), others
