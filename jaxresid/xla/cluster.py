"""A Dask cluster as an executor (extra `jaxresid[dask]`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

from jaxresid.errors import InputsError, JaxresidError

DASK_EXTRA = "pip install 'jaxresid[dask]'"
_CONNECT_S = 10.0
_CLOSE_S = 5.0


@contextlib.contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """What runs compiles on the workers of a scheduler, for as long as this lasts.

    A compile whose worker is lost goes to another, as often as the scheduler's
    `distributed.scheduler.allowed-failures` says (3).

    Args:
      address: of the scheduler, `tcp://host:8786`.

    Raises:
      JaxresidError: Dask is not installed, or no scheduler answers within 10 s.
    """
    try:
        import distributed
    except ImportError as e:
        raise JaxresidError(f"--scheduler needs Dask; install it with: {DASK_EXTRA}") from e
    with _quiet():
        _check(distributed, address)
        client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
    try:
        # pure: what failed is to be tried again, not remembered.
        yield client.get_executor(pure=False)
    finally:
        with contextlib.suppress(Exception), _quiet():  # a scheduler that is gone has nothing left
            client.close(timeout=_CLOSE_S)


def _check(distributed: Any, address: str) -> None:
    """Asks the scheduler what it is. A `Client` that cannot connect takes 20 s more to go away, and
    prints a traceback then (distributed 2026.8)."""

    async def identity() -> Any:
        async with distributed.rpc(address) as scheduler:
            return await asyncio.wait_for(scheduler.identity(), _CONNECT_S)

    unanswered = f"no Dask scheduler answers at {address}"
    try:
        found = asyncio.run(identity())
    except (TypeError, ValueError) as e:
        raise InputsError(
            f"--scheduler {address}: {' '.join(str(e).split())}; write the scheduler's address,"
            " e.g. tcp://host:8786"
        ) from e
    except (OSError, TimeoutError) as e:
        raise JaxresidError(
            f"{unanswered} within {_CONNECT_S:g} s: is it running, and can it be reached from here?"
        ) from e
    except Exception as e:  # whatever another protocol's bytes come to
        raise JaxresidError(f"{unanswered}: something else may ({type(e).__name__})") from e
    if not isinstance(found, dict) or found.get("type") != "Scheduler":
        raise JaxresidError(f"{unanswered}: it is a {found.get('type')}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Dask from logging what is said in our words."""
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
