"""Take apart configurations that stand for models: `base.yml model_name=llama2-7b`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from jaxresid.base.errors import TargetError


@dataclass(frozen=True, slots=True)
class Configuration:
    """A file of settings, and settings that go before those of the file.

    Attributes:
      file: the file as the user wrote it.
      settings: the others, by their names, as text.
    """

    file: str
    settings: Mapping[str, str]

    @property
    def words(self) -> tuple[str, ...]:
        """The settings as a command line has them."""
        return tuple(f"{key}={value}" for key, value in self.settings.items())


def configuration_of(file: str, text: str) -> Configuration:
    """Return a configuration.

    Args:
      file: the file.
      text: the settings, `key=value key=value`, quoted as in a shell.

    Raises:
      TargetError: they are not settings, or one is given twice.
    """
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise TargetError(f"{text!r} are no settings key=value ({e})") from None
    settings: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise TargetError(f"{word!r} is no setting: write key=value after {file}")
        if key in settings:
            raise TargetError(f"{key} is set twice after {file}")
        settings[key] = value
    return Configuration(file, MappingProxyType(settings))
