"""Use a Dask cluster as an executor (extra `jaxresid[dask]`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    InvalidStateError,
)
from typing import Any

from jaxresid.base.errors import InputsError, JaxresidError

DASK_EXTRA = "pip install 'jaxresid[dask]'"
_CONNECT_S = 10.0
_CLOSE_S = 5.0
_LOGGERS = ("distributed", "tornado", "asyncio")


@contextlib.contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Yield an executor that runs compiles on the workers of a scheduler, while the context lasts.

    A compile whose worker is lost goes to another, as often as the scheduler's
    `distributed.scheduler.allowed-failures` says (3). Once the scheduler is lost the executor is a
    broken one.

    Args:
      address: the address of the scheduler, `tcp://host:8786`.

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
            yield _Cluster(client, address)
        finally:
            with contextlib.suppress(Exception):  # a scheduler that is gone has nothing left
                client.close(timeout=_CLOSE_S)


class _Cluster(Executor):
    """A client's executor that breaks with the scheduler.

    The client itself then cancels its futures, and those that it is given later.
    """

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self._gone = f"the connection to the Dask scheduler at {address} was lost"
        # pure: what failed is to be tried again, not remembered.
        self._executor = client.get_executor(pure=False)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._is_lost():
            raise BrokenExecutor(self._gone)
        theirs = self._executor.submit(fn, *args, **kwargs)
        ours = _Future(theirs)

        def end(_: object) -> None:
            with contextlib.suppress(InvalidStateError):  # cancelled here
                if theirs.cancelled() and self._is_lost():
                    ours.set_exception(BrokenExecutor(self._gone))
                elif theirs.cancelled():
                    ours.set_exception(CancelledError())
                elif (error := theirs.exception()) is not None:
                    ours.set_exception(error)
                else:
                    ours.set_result(theirs.result())

        theirs.add_done_callback(end)
        return ours

    def _is_lost(self) -> bool:
        return bool(self._client.status != "running")


class _Future(Future[Any]):
    """A future that cancels another one along with itself."""

    def __init__(self, remote: Future[Any]) -> None:
        super().__init__()
        self._theirs = remote

    def cancel(self) -> bool:
        self._theirs.cancel()
        return super().cancel()


def _check(distributed: Any, address: str) -> None:
    """Ask the scheduler for its identity, and raise where no scheduler answers.

    A `Client` that cannot connect takes 20 s more to go away, and prints a traceback then
    (distributed 2026.8).
    """

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
        raise JaxresidError(
            f"{unanswered}: something else may be listening there ({type(e).__name__})"
        ) from e
    if not isinstance(found, dict) or found.get("type") != "Scheduler":
        raise JaxresidError(f"{unanswered}: it is a {found.get('type')}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Dask, and what it runs on, from logging what is reported in our own words.

    These are tracebacks of lost connections, most of all.
    """
    known = [
        logging.getLogger(name)
        for name in (*_LOGGERS, *logging.root.manager.loggerDict)
        if name.partition(".")[0] in _LOGGERS
    ]
    levels = [(logger, logger.level) for logger in known]
    for logger in known:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in levels:
            logger.setLevel(level)
