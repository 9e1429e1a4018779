"""Read the keys of `[tool.jaxresid]`, each by a function of a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import get_args

from jaxresid.base.option_types import OutputFormat
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.settings.globs import regex_of
from jaxresid.settings.named_target import named_targets
from jaxresid.settings.requirements.versions import Version
from jaxresid.settings.toml_values import ConfigError, flag, kind_of, string, string_list

OUTPUT_FORMATS: tuple[str, ...] = get_args(OutputFormat)


def value_of(key: str, value: object) -> object:
    """Return the value of a key; raise ConfigError where it is not understood."""
    if key in READERS:
        return READERS[key](key, value)
    guess = did_you_mean(key.replace("_", "-"), READERS)
    keys = ", ".join(READERS)
    raise ConfigError(f"unknown key `{key}` in [tool.jaxresid]{guess}\n  known keys: {keys}")


def split_selectors(values: Iterable[str]) -> tuple[str, ...]:
    """Return comma-separated selectors, `JXR1,JXR2`, one by one."""
    parts = (part.strip() for value in values for part in value.split(","))
    return tuple(part for part in parts if part)


def parse_per_file_ignores(values: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the (glob, selectors) pairs of `tests/*:JXR101,tests/*:JXR102`.

    Raises:
      ConfigError: A part is not GLOB:SELECTOR.
    """
    pairs = []
    for part in split_selectors(values):
        pattern, colon, selector = part.rpartition(":")
        if not colon or not pattern.strip() or not selector.strip():
            raise ConfigError(
                f"`--per-file-ignores`: {part!r} is not GLOB:CODE, such as 'tests/*:JXR101'"
            )
        pairs.append((pattern.strip(), (selector.strip(),)))
    return tuple(pairs)


def parse_target_jax(text: str) -> Version:
    """Return the major and minor number, (0, 10), of a version of JAX, `0.10` or `0.10.2`."""
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", text.strip())
    if match is None:
        raise ConfigError(f'target-jax: {text!r} is not a version of JAX such as "0.10"')
    return int(match[1]), int(match[2])


def check_glob(pattern: str, key: str) -> str:
    """Return a glob; raise ConfigError where it is none."""
    try:
        re.compile(regex_of(pattern))
    except (ValueError, re.error) as error:
        raise ConfigError(f"{key}: {pattern!r} is not a glob: {error}") from None
    return pattern


def no_format(value: object) -> str:
    """Return the message for what is no output format."""
    guess = did_you_mean(str(value), OUTPUT_FORMATS)
    return f"output-format: {value!r} is not one of {', '.join(OUTPUT_FORMATS)}{guess}"


def _selectors(key: str, value: object) -> tuple[str, ...]:
    return string_list(key, value, '["JXR1"]')


def _globs(key: str, value: object) -> tuple[str, ...]:
    patterns = string_list(key, value, '["vendored"]')
    return tuple(check_glob(pattern, f"`{key}`") for pattern in patterns)


def _target_jax(key: str, value: object) -> Version:
    if not isinstance(value, str):
        raise ConfigError(f'`target-jax` is {kind_of(value)}; write target-jax = "0.10"')
    return parse_target_jax(value)


def _output_format(key: str, value: object) -> str:
    if not isinstance(value, str) or value not in OUTPUT_FORMATS:
        raise ConfigError(no_format(value))
    return value


def _file_table(key: str, value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    example = '{ "tests/*" = ["JXR101"] }'
    if not isinstance(value, dict):
        raise ConfigError(
            f"`per-file-ignores` is {kind_of(value)}; write a table, per-file-ignores = {example}"
        )
    pairs = []
    for pattern, selectors in value.items():
        check_glob(pattern.removeprefix("!"), "`per-file-ignores`")
        pairs.append((pattern, string_list(f'"{pattern}"', selectors, '["JXR101"]')))
    return tuple(pairs)


READERS: Mapping[str, Callable[[str, object], object]] = {
    "select": _selectors,
    "ignore": _selectors,
    "extend-select": _selectors,
    "extend-ignore": _selectors,
    "fixable": _selectors,
    "unfixable": _selectors,
    "per-file-ignores": _file_table,
    "exclude": _globs,
    "extend-exclude": _globs,
    "force-exclude": flag,
    "respect-gitignore": flag,
    "target-jax": _target_jax,
    "output-format": _output_format,
    "unsafe-fixes": flag,
    "fix": flag,
    "on": lambda key, value: string(key, value, '"gpu:h100"'),
    "targets": lambda key, value: named_targets(value),
}
