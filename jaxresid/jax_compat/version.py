"""Which JAX is installed, what it can do, and how it is imported."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import re
import types
from typing import Any

from jaxresid.base.errors import MissingJaxError
from jaxresid.base.interrupts import deferring_interrupts
from jaxresid.base.library_logs import are_logs_kept, logs_kept

MINIMUM = (0, 7)

# Flags that change which values are residuals. Absent ones are left out of the report.
_FLAGS = (
    "jax_enable_x64",
    "jax_remat3",  # 0.10.2
    "jax_use_direct_linearize",  # default on since 0.7.0
    "jax_custom_vjp3",  # 0.9.1
    "jax_custom_jvp3",  # 0.11
    "jax_scan3",  # 0.10.0
    "jax_remat_barrier_no_cotangents",  # 0.11
)


@functools.cache
def import_jax() -> types.ModuleType:
    """Return the installed jax, if it is new enough.

    Raises:
      MissingJaxError: saying in one line what to install.
    """
    try:
        with deferring_interrupts(), logs_kept():
            import jax
    except ModuleNotFoundError as e:
        if e.name not in ("jax", "jaxlib"):
            raise
        raise MissingJaxError(
            f"{e.name} is not installed here; install it with: pip install 'jaxresid[jax]'"
            " (or install the jax build that your machine needs)"
        ) from None
    version = jax_version()
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if numbers < MINIMUM:
        raise MissingJaxError(
            f"jax {version} is too old; jaxresid needs jax >= {MINIMUM[0]}.{MINIMUM[1]}:"
            " pip install -U jax"
        )
    _keep_logs_of_backends()
    return jax  # type: ignore[no-any-return]


def _keep_logs_of_backends() -> None:
    """Have what backends log be kept as JAX first looks for devices, whoever asks it to."""
    from jax._src import xla_bridge

    bridge: Any = xla_bridge
    start = bridge.backends

    def backends() -> Any:
        bridge.backends = start  # they start once
        with logs_kept():
            return start()

    if are_logs_kept() and not bridge.backends_are_initialized():
        bridge.backends = backends


def jax_version() -> str:
    """Return the version of the installed jax."""
    import jax

    return getattr(jax, "__version__", None) or importlib.metadata.version("jax")


def jaxlib_version() -> str:
    """Return the version of the installed jaxlib."""
    import jaxlib

    return getattr(jaxlib, "__version__", None) or importlib.metadata.version("jaxlib")


def compilers() -> dict[str, str]:
    """Return the packages that compile, with their versions: jaxlib, and libtpu where installed."""
    found = {"jaxlib": jaxlib_version()}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["libtpu"] = importlib.metadata.version("libtpu")
    return found


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, as in "0.7.1"."""
    return tuple(int(n) for n in version.split("."))


def flags() -> dict[str, bool]:
    """Return the values of those flags that change residuals and exist in this version."""
    config = import_jax().config
    values = {name: getattr(config, name, None) for name in _FLAGS}
    return {name: bool(value) for name, value in values.items() if value is not None}
