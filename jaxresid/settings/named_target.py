"""Read `[tool.jaxresid.targets.NAME]`: a target and the options it is asked about with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, get_args

from jaxresid.base.option_types import MeshMode, Mode
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.base.text.units import parse_budget, parse_growth
from jaxresid.settings.toml_values import ConfigError, flag, kind_of, string, string_list


class NamedTarget(NamedTuple):
    """A target of a configuration file.

    Attributes:
      name: the name it goes by, without a colon.
      target: `module:function` or `path/to/file.py:function`, relative to the file's folder.
      options: the values of the other keys by their options, as one writes them on the command
        line: `--batch` -> `8,16`. A flag has a bool, an option that can be repeated a tuple.
    """

    name: str
    target: str
    options: Mapping[str, str | bool | tuple[str, ...]]


def named_targets(value: object) -> tuple[NamedTarget, ...]:
    """Return the targets of the table `targets`, in the order of the file.

    Raises:
      ConfigError: The table, or one in it, is not understood.
    """
    if not isinstance(value, dict):
        raise ConfigError(
            f"`targets` is {kind_of(value)}; write a table for each, [tool.jaxresid.targets.NAME]"
        )
    return tuple(_named_target(name, table) for name, table in value.items())


def _named_target(name: str, table: object) -> NamedTarget:
    header = f"[tool.jaxresid.targets.{name}]"
    if not name or ":" in name or name.startswith("-"):
        raise ConfigError(
            f"{name!r} cannot name a target: write a name that has no colon and does not begin"
            " with a dash",
            name,
        )
    if not isinstance(table, dict):
        raise ConfigError(f"the target `{name}` is {kind_of(table)}; write a table {header}", name)
    if "target" not in table:
        raise ConfigError(f'{header} has no `target`; write target = "module:function"', name)
    options = {}
    for key, value in table.items():
        if key not in _KEYS:
            guess = did_you_mean(key.replace("_", "-"), _KEYS)
            known = ", ".join(_KEYS)
            raise ConfigError(
                f"unknown key `{key}` in {header}{guess}\n  known keys: {known}", name, key
            )
        option, read = _KEYS[key]
        try:
            options[option] = read(key, value)
        except ConfigError as error:
            raise ConfigError(str(error), name, key) from None
    return NamedTarget(name, str(options.pop("target")), options)


def _target(key: str, value: object) -> str:
    text = string(key, value, '"module:function"')
    place, colon, attribute = text.rpartition(":")
    if not colon or not place or not attribute:
        raise ConfigError(
            f"`{key}` is {kind_of(text)}, which does not name a function; write"
            " module:function or path/to/file.py:function"
        )
    return text


def _text(example: str) -> Callable[[str, object], str]:
    return lambda key, value: string(key, value, example)


def _word(known: tuple[str, ...]) -> Callable[[str, object], str]:
    def read(key: str, value: object) -> str:
        if value not in known:
            quoted = " or ".join(f'"{word}"' for word in known)
            raise ConfigError(f"`{key}` is {kind_of(value)}; write {key} = {quoted}")
        return str(value)

    return read


def _specs(key: str, value: object) -> tuple[str, ...]:
    return string_list(key, value, '["f32[64,512]"]')


def _named_specs(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, dict):
        raise ConfigError(
            f'`{key}` is {kind_of(value)}; write a table, {key} = {{ mask = "bool[64]" }}'
        )
    specs = {name: string(f"{key}.{name}", spec, '"bool[64]"') for name, spec in value.items()}
    return tuple(f"{name}={spec}" for name, spec in specs.items())


def _positions(key: str, value: object) -> str:
    return _numbers(key, value, "0 or [0, 2]")


def _sizes(key: str, value: object) -> str:
    example = '8, or [8, 16] for sweep, or "context=4096"'
    if isinstance(value, str):  # which whoever knows --batch reads
        return string(key, value, example)
    return _numbers(key, value, example, 1)


def _count(key: str, value: object) -> str:
    if isinstance(value, list):
        raise ConfigError(f"`{key}` is a list; write {key} = 100")
    return _numbers(key, value, "100", 1)


def _numbers(key: str, value: object, example: str, least: int | None = None) -> str:
    """Return a whole number, or a list of some, as text with commas."""
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if (
            not isinstance(number, int)
            or isinstance(number, bool)
            or (least is not None and number < least)
        ):
            raise ConfigError(f"`{key}` has {kind_of(number)}; write {key} = {example}")
    if not numbers:
        raise ConfigError(f"the list `{key}` is empty; write {key} = {example}")
    return ",".join(map(str, numbers))


def _growth(key: str, value: object) -> str:
    text = string(key, value, '"2%"')
    try:
        parse_growth(text)
    except ValueError as error:
        raise ConfigError(f"`{key}`: {error}") from None
    return text


def _limit(key: str, value: object) -> str:
    text = string(key, value, '"12GiB"')
    try:
        parse_budget(text)
    except ValueError as error:
        raise ConfigError(f"`{key}`: {error}") from None
    return text


def _budget(key: str, value: object) -> str:
    if isinstance(value, str) and value[:1].isalpha():  # a place, which whoever knows places checks
        return value
    return _limit(key, value)


# Key -> the option it stands for, and what reads its value.
_KEYS: Mapping[str, tuple[str, Callable[[str, object], str | bool | tuple[str, ...]]]] = {
    "target": ("target", _target),
    "inputs": ("--inputs", _text('"make_inputs"')),
    "concrete-inputs": ("--concrete-inputs", flag),
    "args": ("--arg", _specs),
    "kwargs": ("--kwarg", _named_specs),
    "build": ("--build", flag),
    "argnums": ("--argnums", _positions),
    "has-aux": ("--has-aux", flag),
    "mode": ("--mode", _word(get_args(Mode))),
    "mesh": ("--mesh", _text('"data=4,model=2"')),
    "mesh-mode": ("--mesh-mode", _word(get_args(MeshMode))),
    "on": ("--on", _text('"gpu:h100"')),
    "batch": ("--batch", _sizes),
    "trips": ("--trips", _count),
    "loss": ("--loss", _text('"cross-entropy"')),
    "optimizer": ("--optimizer", _text('"adamw(1e-3)"')),
    "method": ("--method", _text('"decode"')),
    "init-args": ("--init-arg", _specs),
    "budget": ("--budget", _budget),
    "max-peak": ("--max-peak", _limit),
    "max-kept": ("--max-kept", _limit),
    "max-growth": ("--max-growth", _growth),
}
