"""Import the libraries that adapters are for; each may be missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from jaxresid.base.errors import NOT_CAUGHT, TargetError, summary


def imported(module: str, what: str, package: str | None = None) -> ModuleType:
    """Return a module of a library.

    Args:
      module: its dotted name.
      what: what needs it, as a user writes it.
      package: what to install; None: the first part of the module's name.

    Raises:
      TargetError: the library is not installed, or fails to import.
    """
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except NOT_CAUGHT:
        raise
    except BaseException as e:
        name = package or library
        if isinstance(e, ModuleNotFoundError) and e.name == library:
            raise TargetError(
                f"{what} needs {name}, which is not installed here: pip install {name}"
            ) from e
        raise TargetError(f"{what} needs {name}, which fails to import: {summary(e)}") from e
