"""TARGET: a function, or the name of a `[tool.jaxresid.targets.NAME]` of the configuration.

The keys of the table, and the key `on` of `[tool.jaxresid]`, become the defaults of the command's
options, so that they are parsed and checked as on the command line, which overrides them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from jaxresid.base.errors import InputsError, TargetError
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.cli.completion.values import targets
from jaxresid.cli.options.batches import Sizes, is_sized
from jaxresid.cli.options.unchosen import function_list
from jaxresid.settings.named_target import NamedTarget
from jaxresid.settings.project import Project, project
from jaxresid.settings.toml_values import ConfigError
from jaxresid.targets import references
from jaxresid.targets.specs import parse_axes
from jaxresid.targets.targets import no_function

_NAME = re.compile(r"[\w-]+")


@dataclass(frozen=True, slots=True)
class ChosenTarget:
    """What TARGET stands for.

    Attributes:
      text: `module:function` or `file.py:function`, relative to the working directory.
      folder: of a named target the folder of the configuration file, whose modules it may name;
        None for a function that the command line names.
      place_origin: which table of which file sets the default of --on; None: none does.
      name: the name of a named target; None for a function that the command line names.
    """

    text: str
    folder: str | None = None
    place_origin: str | None = None
    name: str | None = None


class _Target(click.types.StringParamType):
    """The type of TARGET, which says what to write and completes it."""

    name = "target"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return what to write where TARGET is left out; click before 8.2 gives no context."""
        try:
            names = [target.name for target in project(Path()).targets]
        except ConfigError:  # another command will say what is wrong with the file
            names = []
        known = f", or a target of pyproject.toml: {', '.join(names)}" if names else ""
        return (
            f"Write the function, as in train.py:loss{known}; of a file alone, as in train.py, it"
            " lists the functions."
        )

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the targets that begin as what is typed."""
        return targets(ctx, param, incomplete)


def target_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add TARGET; the command receives a `ChosenTarget`, `target`."""
    # Click reads what is typed, options first, before it asks for defaults.
    return click.argument("target", type=_Target(), callback=_chosen)(command)


def optional_target(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let the command do without TARGET; it then receives None, and asks `every_target`."""
    for parameter in getattr(command, "__click_params__", ()):
        if parameter.name == "target":
            parameter.required = False
    return command


def every_target(context: click.Context) -> tuple[click.Context, ...]:
    """Return a context for each target of the configuration, as if it were given as TARGET.

    Args:
      context: The context of the command, after its options are read.

    Raises:
      TargetError: The configuration names no target.
      InputsError: A table has a value that is not one of the command's option.
    """
    found = _project(context)
    if not found.targets:
        where = f" and {found.location()} names none" if found.file else ""
        raise TargetError(
            f"there is no TARGET{where}: give one, such as train/model.py:loss, or write"
            " [tool.jaxresid.targets.NAME] in pyproject.toml"
        )
    return tuple(_as_if_given(context, target.name) for target in found.targets)


def _as_if_given(context: click.Context, name: str) -> click.Context:
    """Return a context with the table of a target, and what was typed in place of its values."""
    typed = {
        key: value
        for key, value in context.params.items()
        if _has_source(context, key, ParameterSource.COMMANDLINE)
    }
    file = ["--config", str(typed["config"])] if "config" in typed else []
    made = context.command.make_context(context.info_name, [name, *file], context.parent)
    for key, value in typed.items():
        made.params[key] = value
        made.set_parameter_source(key, ParameterSource.COMMANDLINE)
    return made


def _project(context: click.Context) -> Project:
    return project(
        Path(),
        config_file=context.params.get("config"),
        isolated=bool(context.params.get("isolated")),
    )


def _chosen(
    context: click.Context, argument: click.Parameter, text: str | None
) -> ChosenTarget | None:
    if text is None:
        return None
    if context.resilient_parsing:
        return ChosenTarget(text)
    found = _project(context)
    if not any(target.name == text for target in found.targets):
        listed = None if ":" in text[:-1] else function_list(str(context.info_name), text)
        if listed is not None:
            raise TargetError(listed)
    named = None if ":" in text else _named(text, found)
    if found.file is None:
        return ChosenTarget(text)
    folder = Path(os.path.abspath(found.file)).parent
    tables: dict[tuple[str, ...], Mapping[str, Any]] = {}
    if found.on is not None:
        tables[()] = {"--on": found.on}
    if named is not None:
        tables["targets", named.name] = named.options
    context.default_map = _defaults(context, tables, folder, found)
    origins = [
        f"[{'.'.join(('tool', 'jaxresid', *keys))}] of {os.path.relpath(found.file)}"
        for keys, options in tables.items()
        if "--on" in options
    ]
    place_origin = origins[-1] if origins else None
    if named is None:
        return ChosenTarget(text, place_origin=place_origin)
    reference = _reference_from_here(named.target, folder)
    return ChosenTarget(reference, str(folder), place_origin, named.name)


def _defaults(
    context: click.Context,
    tables: Mapping[tuple[str, ...], Mapping[str, Any]],
    folder: Path,
    found: Project,
) -> dict[str, Any]:
    """Return the defaults of the command's options by their names.

    Args:
      context: the context of the command, after what is typed is read.
      tables: the options that tables set, by the keys of the tables; the last one wins.
      folder: the folder of the configuration file.
      found: the configuration.

    Raises:
      InputsError: A value that is not overridden is not one of the option.
    """
    parameters = {flag: each for each in context.command.params for flag in each.opts}
    defaults: dict[str, Any] = {}
    for keys, options in tables.items():
        for option, written in options.items():
            parameter = parameters.get(option)
            if parameter is None:  # the key is not this command's
                continue
            name, value = str(parameter.name), _from_here(option, written, folder)
            if not _has_source(context, name, ParameterSource.COMMANDLINE):
                _check(option, value, parameter, found, keys)
            is_one = parameter.multiple and isinstance(value, str)
            defaults[name] = [value] if is_one else value
    return defaults


def _named(name: str, found: Project) -> NamedTarget:
    """Return the target of a name.

    Raises:
      TargetError: There is none.
    """
    known = {target.name: target for target in found.targets}
    if name in known:
        return known[name]
    if not known:
        hint = f"\n  a name needs [tool.jaxresid.targets.{name}] in pyproject.toml"
        raise TargetError(no_function(name) + (hint if _NAME.fullmatch(name) else ""))
    raise TargetError(
        f"{name!r} is not a target of {found.location()}{did_you_mean(name, known)} (known:"
        f" {', '.join(known)}); a function is module:function, e.g. train/model.py:loss"
    )


def _check(
    option: str, value: Any, parameter: click.Parameter, found: Project, keys: tuple[str, ...]
) -> None:
    """Check what neither the configuration knows nor an error of the option would locate.

    Raises:
      InputsError: It is not a mesh, a place or a word of the command; the message names the file
        and the key.
    """
    try:
        if option == "--on":
            from jaxresid.xla.places import parse_place

            parse_place(value)
        elif option == "--budget":
            from jaxresid.xla.budgets import budget_nbytes

            budget_nbytes(value)
        elif option == "--mesh":
            parse_axes(value)
        elif isinstance(parameter.type, click.Choice) and value not in parameter.type.choices:
            words = ", ".join(parameter.type.choices)
            raise InputsError(f"this command knows only {words}; give one with {option}")
    except InputsError as e:
        key = option.removeprefix("--")
        raise InputsError(f"{found.location(*keys, key)}: `{key}`: {e}") from None


def _from_here(option: str, value: Any, folder: Path) -> Any:
    """Return the value of an option with files as seen from the working directory."""
    if option in references.OPTIONS:
        return _reference_from_here(value, folder)
    return _place_from_here(value, folder) if option in ("--on", "--budget") else value


def _reference_from_here(reference: str, folder: Path) -> str:
    """Return `file.py:function` with its file as seen from the working directory."""
    return references.with_file(reference, lambda file: _file_from_here(file, folder))


def _place_from_here(place: str, folder: Path) -> str:
    """Return a place with the file that describes a GPU as seen from the working directory."""
    kind, _, rest = place.partition(":")
    for file in (rest, rest.rpartition(":")[0]):
        if kind in ("gpu", "cuda") and file and (folder / file).is_file():
            return f"{kind}:{_file_from_here(file, folder)}{rest.removeprefix(file)}"
    return place


def _file_from_here(file: str, folder: Path) -> str:
    if folder == Path.cwd() or os.path.isabs(file):
        return file
    return os.path.relpath(folder / file)


def place_origin(context: click.Context) -> str | None:
    """Return which table of which file --on comes from; None where the configuration has no part.

    Args:
      context: the context of a command with TARGET, after its options are read.
    """
    on = next((each for each in context.command.params if "--on" in each.opts), None)
    if on is None or not _has_source(context, str(on.name), ParameterSource.DEFAULT_MAP):
        return None
    chosen: ChosenTarget = context.params["target"]
    return chosen.place_origin


def without_replaced(context: click.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a command without the inputs of a table that others replace.

    A target has one source of inputs: `--inputs` on the command line replaces `args` of the table,
    and the other way round. A `--kwarg` replaces that of its name only. A batch size of the table
    goes where nothing takes it any more.
    """

    def is_typed(name: str) -> bool:
        return _has_source(context, name, ParameterSource.COMMANDLINE)

    kept = dict(options)
    is_whole = is_typed("inputs") or is_typed("build")
    if not (is_whole or is_typed("arg") or is_typed("kwarg")):
        return kept
    replaced: dict[str, Any] = {"inputs": None, "build": False, "concrete_inputs": False}
    if is_whole:
        replaced |= {"arg": (), "kwarg": ()}
    elif is_typed("kwarg"):
        names = {each.partition("=")[0] for each in options["kwarg"]}
        table = (context.default_map or {}).get("kwarg", ())
        others = [each for each in table if each.partition("=")[0] not in names]
        kept["kwarg"] = (*others, *options["kwarg"])
    kept |= {name: value for name, value in replaced.items() if not is_typed(name)}
    sizes, specs = kept["batch"], (*kept["arg"], *kept["kwarg"])
    if not is_typed("batch") and not any(is_sized(spec, sizes.name) for spec in specs):
        kept["batch"] = Sizes()
    return kept


def _has_source(context: click.Context, name: str, source: ParameterSource) -> bool:
    return context.get_parameter_source(name) is source
