"""A cache of compile results on disk: a JSON file for each result, written whole or not at all.

A result answers only for the module, the place and the flags that it was made from, and for the
versions of the compilers and of the code here. A cache that cannot be read or written is an empty
one, and says so in one line.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from jaxresid.base import regular_files, user_cache
from jaxresid.base.home import FOLDER
from jaxresid.serialization.decoding import decoded
from jaxresid.xla.job import Compilation, Job

LIMIT_NBYTES = 256 << 20
_COMPILERS = (
    *("jax", "jaxlib", "libtpu"),
    *("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12"),
)
# They change what XLA does, whoever starts it.
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def default_directory() -> Path:
    """Return the folder of the compile cache.

    It is `compiled` in `$JAXRESID_CACHE_DIR`, else in the platform's folder for a user's caches.
    """
    return user_cache.folder() / "compiled"


def key(job: Job) -> str:
    """Return the key of a compile: 64 hexadecimal digits.

    Its limits, its label and what it has to fit into do not count. What is compiled for devices of
    this machine goes by the machine as well: by its processors XLA decides how to split loops, and
    its memory is in the result.
    """
    here = _machine() if job.place.is_here else ()
    variables = tuple(os.environ.get(name, "") for name in _VARIABLES)
    module = job.module
    place = (job.place.text, job.place.topology, job.place.target_config)
    parts = (*place, sorted(job.flags), module.platform, module.devices, variables, here)
    digest = hashlib.sha256(repr((*parts, _versions())).encode("utf-8", "surrogateescape"))
    digest.update(module.code)
    return digest.hexdigest()


class CompileCache:
    """Compilations by job.

    One process's methods are called by one thread at a time; any number of processes may use a
    directory at once. Nothing is touched before the first use.

    Args:
      directory: where the entries are.
      limit_nbytes: the bytes that all entries may take together; the ones that were not used for
        the longest time make room.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, limit_nbytes: int = LIMIT_NBYTES
    ) -> None:
        self.directory = Path(directory)
        self._limit_nbytes = limit_nbytes
        self._unusable: str | None = None
        self._bad: list[str] = []

    @property
    def warnings(self) -> tuple[str, ...]:
        """The problems that the user should know about, a line each."""
        found = [] if self._unusable is None else [self._unusable]
        if self._bad:
            n = len(self._bad)
            what = "an entry" if n == 1 else f"{n} entries"
            found.append(
                f"{what} of the compile cache cannot be read and will be replaced:"
                f" {self.directory / self._bad[0]}" + (f" and {n - 1} more" if n > 1 else "")
            )
        return tuple(found)

    def get(self, job: Job) -> Compilation | None:
        """Return the result that was put for a job, with `cached` set, or None."""
        name = key(job)
        file = self._file(name)
        try:
            data = regular_files.read(file)
        except FileNotFoundError:
            return None
        except OSError as e:
            if os.path.lexists(file) and not regular_files.is_regular(file):
                self._bad.append(file.name)
            else:
                self._fail("read", e)
            return None
        try:
            found = _decoded(data, name)
        except (ValueError, TypeError, KeyError, RecursionError):
            self._bad.append(file.name)
            return None
        with suppress(OSError):
            os.utime(file)  # it is used
        return dataclasses.replace(found, cached=True)

    def put(self, job: Job, compilation: Compilation) -> None:
        """Keep a result, unless it is an error or transient.

        A result of another version of a compiler, from another machine, is not kept either.
        """
        if compilation.error is not None or compilation.transient or self._unusable is not None:
            return
        if not _of_this_version(compilation.compiler):
            return
        name = key(job)
        try:
            user_cache.prepare(self.directory)
            user_cache.write(self._file(name), _encoded(compilation, name))
            user_cache.drop_oldest(self.directory, self._limit_nbytes)
        except OSError as e:
            self._fail("written", e)

    def _file(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def _fail(self, what: str, error: OSError) -> None:
        reason = error.strerror or type(error).__name__
        self._unusable = (
            f"the compile cache cannot be {what} ({reason}: {self.directory}); continuing without"
            " it"
        )


def _encoded(compilation: Compilation, name: str) -> bytes:
    """Return an entry: a line that says what follows and has its digest, then the result."""
    values = {f.name: getattr(compilation, f.name) for f in dataclasses.fields(compilation)}
    values["stats"] = dict(compilation.stats)
    values["buffers"] = [dataclasses.asdict(buffer) for buffer in compilation.buffers]
    values["collectives"] = [dataclasses.asdict(op) for op in compilation.collectives]
    values["messages"] = [dataclasses.asdict(message) for message in compilation.messages]
    body = json.dumps(values, separators=(",", ":")).encode("ascii")
    return json.dumps(_head(name, body)).encode("ascii") + b"\n" + body


def _head(name: str, body: bytes) -> Mapping[str, str]:
    return {"jaxresid-compile": name, "digest": hashlib.sha256(body).hexdigest()}


def _decoded(data: bytes, name: str) -> Compilation:
    """Return the result in what `_encoded` gave.

    Raises:
      ValueError, TypeError, KeyError: it is something else.
    """
    head, _, body = data.partition(b"\n")
    if json.loads(head) != _head(name, body):
        raise ValueError("the entry is not the one that was written")
    values = json.loads(body)
    found = decoded(Compilation, values)
    if not _is_sound(found):
        raise ValueError("this is not what a compiler reports")
    return found  # type: ignore[no-any-return]


def _is_sound(found: Compilation) -> bool:
    """Return whether a result can be one that was put: it has no error and no size below 0."""
    sizes = [*found.stats.values(), found.required_nbytes, found.capacity_nbytes, found.live_nbytes]
    sizes += [buffer.nbytes for buffer in found.buffers]
    sizes += [n for op in found.collectives for n in (op.nbytes, op.count)]
    sizes += [n for m in found.messages for n in (m.nbytes, m.limit_nbytes, m.count)]
    return found.error is None and all(n is None or n >= 0 for n in sizes)


def _of_this_version(compiler: str) -> bool:
    """Return whether a compiler is one that the key was made with.

    Args:
      compiler: its version, as `jaxlib 0.10.2, libtpu 0.0.52`.
    """
    for part in compiler.split(","):
        package, _, version = part.strip().partition(" ")
        if package in _COMPILERS and version != _version(package):
            return False
    return True


@functools.cache
def _versions() -> tuple[str, ...]:
    """Return the versions of the compilers and a digest of the code whose results are kept.

    The compilers are not loaded for it.
    """
    digest = hashlib.sha256()
    package = Path(FOLDER)
    for file in (
        *sorted((package / "xla").rglob("*.py")),
        *sorted((package / "jax_compat").rglob("*.py")),
    ):
        with suppress(OSError):
            digest.update(file.read_bytes())
    return (*(f"{p} {_version(p)}" for p in _COMPILERS), digest.hexdigest())


@functools.cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _machine() -> tuple[object, ...]:
    """Return the properties of this machine that the compilers depend on.

    The compilers are not loaded for it.
    """
    memory = None
    with suppress(AttributeError, OSError, ValueError):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    gpus = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with suppress(OSError):
            gpus += [line for line in file.read_text().splitlines() if line.startswith("Model")]
    return platform.machine(), _processor(), os.cpu_count(), memory, tuple(gpus)


def _processor() -> str:
    """Return the model of the processor."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
