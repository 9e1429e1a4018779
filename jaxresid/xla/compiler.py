"""Compile one program: the work of a child process on the job that it is given.

Nothing here needs the user's function, and nothing is run. An XLA that aborts takes its process
along; the process that asked reports it.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from jaxresid import jax_compat
from jaxresid.xla import places, stderr, tpus
from jaxresid.xla.autotuning import has_triton_matmul
from jaxresid.xla.hlo import dump
from jaxresid.xla.hlo.buffers import buffers
from jaxresid.xla.hlo.collectives import collectives
from jaxresid.xla.hlo.memory import memory_stats
from jaxresid.xla.hlo.module import output_dims
from jaxresid.xla.hlo.out_of_memory import parse_out_of_memory, refined
from jaxresid.xla.hlo.warnings import messages
from jaxresid.xla.job import Compilation, CompilerMessage, Job
from jaxresid.xla.versions import installed_version

# Names of `model.Compiled` -> those of XLA's CompiledMemoryStats, which has them since 0.7.0.
_STATS = {
    "temp_nbytes": "temp_size_in_bytes",
    "argument_nbytes": "argument_size_in_bytes",
    "output_nbytes": "output_size_in_bytes",
    "alias_nbytes": "alias_size_in_bytes",
    "generated_code_nbytes": "generated_code_size_in_bytes",
    "host_temp_nbytes": "host_temp_size_in_bytes",
    "host_argument_nbytes": "host_argument_size_in_bytes",
    "host_output_nbytes": "host_output_size_in_bytes",
    "host_alias_nbytes": "host_alias_size_in_bytes",
}

# More than any device has, so that the compiler says how much that is: 0.02 s on libtpu 0.0.52.
_TOO_BIG = b"""
func.func public @main(%x: tensor<1099511627776xi8>) -> tensor<1099511627776xi8> {
  %y = stablehlo.add %x, %x : tensor<1099511627776xi8>
  return %y : tensor<1099511627776xi8>
}
"""

# What compiles for each platform besides jaxlib.
_COMPILERS = {"tpu": ("libtpu",), "cuda": ("jax-cuda12-plugin",)}
_NOT_COUNTED = (
    "not counted: what CUDA's context, NCCL, autotuning and fragmentation take besides the program"
)
_AUTOTUNING = "xla_gpu_autotune_level"
_LOOK_EVERY_S = 0.02
# Of what a TPU has: a program that takes less than this fits by its buffers alone.
_SURE_TO_FIT = 0.95
# What Pallas kernels for a TPU are in StableHLO. libtpu makes such calls in HLO by itself.
_PALLAS = b"tpu_custom_call"


class _UnavailableError(Exception):
    """An error for devices that are not available here; the message says why."""


def compilation(job: Job) -> Compilation:
    """Return the result of compiling a program; what goes wrong is in its `error`."""
    place = job.place
    try:
        devices = _devices(place, job.module.devices)
    except _UnavailableError as e:
        return Compilation(error=str(e), compiler=_version(place))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        flags = {} if place.platform == "cpu" else dump.flags(folder)
        if place.target_config and (toolkit := places.cuda_toolkit()):
            flags["xla_gpu_cuda_data_dir"] = toolkit
        options = {**flags, **{name: _option(value) for name, value in job.flags}}
        capacity = _capacity(place, devices)
        started, log = time.perf_counter(), stderr.length()
        try:
            executable = _compiled(job, devices, options, folder, capacity)
            seconds = time.perf_counter() - started
        except Exception as e:
            seconds = time.perf_counter() - started
            dumped, text = dump.read(folder), stderr.since(log)
            failure = _failure(e, place, capacity, dumped)
            failure = replace(failure, messages=_messages(text, dumped[0]))
            return replace(failure, seconds=seconds, compiler=_version(place))
        dumped, text = dump.read(folder), stderr.since(log)
    if executable is None:
        stats: Mapping[str, int] = memory_stats(dumped[1], place.platform)
        protos = [dumped[0]]
    else:
        memory = executable.get_compiled_memory_stats()
        protos = [module.as_serialized_hlo_module_proto() for module in executable.hlo_modules()]
        stats = _stats(memory)
        assignment = getattr(memory, "serialized_buffer_assignment_proto", None)
        if assignment and len(protos) == 1:
            dumped = protos[0], assignment
    live = buffers(*dumped, place.platform)
    return Compilation(
        stats=_with_peak(stats),
        capacity_nbytes=capacity,
        buffers=live.buffers,
        live_nbytes=live.nbytes,
        collectives=tuple(op for proto in protos for op in collectives(proto)),
        output_shards=output_dims(protos[0]) if protos else None,
        seconds=seconds,
        compiler=_version(place),
        notes=(*live.notes, *_notes(place, devices)),
        # A TPU's executable numbers stack frames anew; the dumped module does not.
        messages=_messages(text, dumped[0] or b"".join(protos[:1])),
        has_triton_matmul=bool(place.target_config) and any(map(has_triton_matmul, protos)),
    )


def _messages(log: str, module: bytes) -> tuple[CompilerMessage, ...]:
    return messages(log, module, numbers_frames=jax_compat.numbers_frames())


def _compiled(
    job: Job,
    devices: Sequence[Any],
    options: Mapping[str, str | bool],
    folder: str,
    capacity: int | None,
) -> Any | None:
    """Return an executable, or None where the buffer assignment that is dumped says all.

    Raises:
      Exception: what the compiler says against the program.
    """
    compile = partial(jax_compat.compiled, job.module.code, devices)
    has_pallas = _PALLAS in job.module.code  # whose code may not fit on the chip
    if job.place.platform == "tpu" and capacity is not None and not has_pallas:
        most = int(_SURE_TO_FIT * capacity)
        return _until_assigned(partial(compile, options), folder, partial(_is_sure, most))
    if not job.place.target_config:
        return compile(options)
    if _AUTOTUNING not in options:
        # Without a GPU XLA makes some kernels for each matmul all the same, and takes the first
        # that it can make: 40 % of the work. To take the first untried mostly does.
        with suppress(Exception):
            return _until_assigned(partial(compile, {**options, _AUTOTUNING: "0"}), folder)
    return _until_assigned(partial(compile, options), folder)


def _is_sure(most: int, module: bytes, assignment: bytes) -> bool:
    """Return whether libtpu can say no more against a program once it has assigned its buffers.

    It can where the program takes nearly all that there is.
    """
    peak = _with_peak(memory_stats(assignment, "tpu")).get("peak_nbytes", 0)
    return peak <= most


def _until_assigned(
    compile: Callable[[], Any],
    folder: str,
    is_enough: Callable[[bytes, bytes], bool] = lambda module, assignment: True,
) -> Any | None:
    """Return what a compile returns, or None as soon as its buffer assignment is dumped.

    Memory is settled by then, and what follows, the code of each kernel, takes most of the time.
    The compile goes on in a thread of its own, until its process is ended.

    Args:
      is_enough: whether a module and its buffer assignment say all; else the compile is awaited.

    Raises:
      Exception: what the compiler says against the program.
    """
    outcomes: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcomes.put((compile(), None))
        except Exception as e:
            outcomes.put((None, e))

    threading.Thread(target=run, daemon=True).start()
    wait_s: float | None = _LOOK_EVERY_S
    while True:
        outcome = None
        with suppress(queue.Empty):
            outcome = outcomes.get(timeout=wait_s)
        if wait_s is not None and (dumped := dump.read(folder))[1]:
            if is_enough(*dumped):
                return None
            wait_s = None
        if outcome is not None:
            executable, error = outcome
            if error is not None:
                raise error
            return executable


def _notes(place: places.Place, devices: Sequence[Any]) -> tuple[str, ...]:
    if place.target_config:
        return (_NOT_COUNTED,)
    if place.platform == "cpu" and len(devices) > 1:
        return (f"the memory is this machine's, shared by {len(devices)} CPU devices",)
    return ()


def _devices(place: places.Place, count: int) -> Sequence[Any]:
    reason = places.why_unavailable(place)
    if reason is not None:
        raise _UnavailableError(reason)
    jax = jax_compat.import_jax()
    try:
        if not place.is_here:
            devices = jax_compat.topology_devices(
                place.platform, place.topology, place.target_config
            )
        else:
            devices = tuple(jax.local_devices(backend=place.platform))
    except Exception as e:
        if place.is_here:
            raise _UnavailableError(f"jax finds no GPU on this machine: {_line(e)}") from e
        shapes = f" (known shapes: {', '.join(tpus.shapes_of(place.chip))})"
        raise _UnavailableError(
            f"{place.text} is not available{shapes * (place.platform == 'tpu')}: {_line(e)}"
        ) from e
    if len(devices) < count:
        has = f"{place.text} has {len(devices)}"
        if place.is_here:
            has = f"this machine has {len(devices)} for {place.text}"
        raise _UnavailableError(f"the program is split over {count} devices, but {has}")
    return devices[:count]


def _option(value: str) -> str | bool:
    """Return a flag's value as XLA takes it.

    Of numbers it reads the text, of booleans only `True`.
    """
    return {"true": True, "false": False}.get(value.lower(), value)


def _failure(
    error: Exception, place: places.Place, memory_nbytes: int | None, dumped: tuple[bytes, bytes]
) -> Compilation:
    """A lack of memory is a result; everything else that the compiler raises is an error."""
    lack = parse_out_of_memory(str(error))
    if lack is None or lack.required_nbytes is None:
        return Compilation(error=_line(error))
    live = buffers(*dumped, place.platform)
    lack = refined(lack, live)
    capacity = lack.capacity_nbytes
    return Compilation(
        required_nbytes=lack.required_nbytes,
        capacity_nbytes=memory_nbytes if capacity is None else capacity,
        buffers=lack.buffers,
        live_nbytes=live.nbytes,
        collectives=collectives(dumped[0]),
        notes=lack.notes,
    )


def _stats(memory: Any) -> Mapping[str, int]:
    figures = {ours: getattr(memory, theirs, None) for ours, theirs in _STATS.items()}
    return {name: int(nbytes) for name, nbytes in figures.items() if nbytes is not None}


def _with_peak(stats: Mapping[str, int]) -> Mapping[str, int]:
    """Return the figures of a program with its peak.

    The peak is arguments + outputs + temporaries - aliased, all of device memory, which is what XLA
    sets aside. Its own field for the peak is another thing at each place: XLA:CPU's leaves the
    temporaries out on 0.8.3 to 0.12.0; libtpu 0.0.52's counts host memory and what a TPU keeps on
    the chip (87.5 MiB for 40.5 MiB of arguments and outputs), and was up to 11 % lower where there
    is neither.
    """
    held = [stats.get(f"{kind}_nbytes") for kind in ("argument", "output", "temp", "alias")]
    if None in held:
        return stats
    argument, output, temp, alias = (n for n in held if n is not None)
    return {**stats, "peak_nbytes": argument + output + temp - alias}


def _capacity(place: places.Place, devices: Sequence[Any]) -> int | None:
    if place.platform == "cpu":
        # Devices of the CPU are one machine's memory.
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // len(devices)
    if place.target_config:  # the place knows, and what it says is no part of a cached result
        return None
    if place.platform == "cuda":
        limit = (devices[0].memory_stats() or {}).get("bytes_limit")
        return None if limit is None else int(limit)
    try:
        jax_compat.compiled(_TOO_BIG, devices[:1], {})
    except Exception as e:
        lack = parse_out_of_memory(str(e))
        return None if lack is None else lack.capacity_nbytes
    return None


def _version(place: places.Place) -> str:
    packages = ["jaxlib", *_COMPILERS.get(place.platform, ())]
    versions = [(name, installed_version(name)) for name in packages]
    return ", ".join(f"{name} {version}" for name, version in versions if version)


def _line(error: BaseException) -> str:
    """Return an error in one line: its first, and the next where that is an error code alone."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    count = 2 if lines and lines[0].endswith(":") else 1
    return f"{' '.join(lines[:count]):.300}" if lines else type(error).__name__
