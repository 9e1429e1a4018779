"""Read one lack of memory from the lines of a log that are about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import filterfalse
from typing import Literal as OneOf

from jaxresid.results import OomParts, OomPool
from jaxresid.xla.hlo.out_of_memory import listed, parse_out_of_memory
from jaxresid.xla.hlo.sizes import SIZE, nbytes
from jaxresid.xla.logs.failure import Failure, Memory, Phase, Rematerialized

_LENGTH = 300  # of the sentence that is kept

# What says that memory ran out, each with the two groups of a size where it says of how much.
_REQUESTS = (
    r"Out of memory (?:while trying to allocate|allocating) " + SIZE,
    rf"ran out of memory trying to allocate {SIZE}",
    rf"Failed to allocate request for {SIZE}",
    rf"Attempting to (?:reserve|allocate) {SIZE}",
    rf"Could not allocate {SIZE}",
    rf"Allocation \(size={SIZE}\) would exceed memory",
    rf"cuMemAllocAsync failed to allocate {SIZE}",
    rf"failed to (?:alloc|allocate) {SIZE}[^:]{{0,200}}?from device",
)
REQUEST = re.compile("|".join(_REQUESTS))
# The same without rounding.
_EXACT = re.compile(r"(?: bytes)? ?\((?:rounded to )?(\d{1,20})(?:B| bytes)?\)")
_HOST = re.compile(r"OOM[ -]?killed|oom-kill:|Out of memory: Killed process|\bOOMKilled\b", re.I)
# The part of the host's memory that devices read, and of how much where the line says so.
_PINNED = re.compile(
    r"pinned host allocation failed|[Cc]ould not allocate pinned host memory"
    r"|failed to alloc \d{1,20} bytes on host|host_bfc\) ran out of memory"
)
# How a TPU says that one allocation failed, without a word of its memory.
_TPU_ALLOCATION = re.compile(r"That was not possible\. There (?:are|is) ")
_REMATERIALIZED = re.compile(
    r"Can't reduce memory use below [^()\n]{1,20}\((\d{1,20}) bytes\) by rematerialization; only"
    r" reduced to [^()\n]{1,20}\((\d{1,20}) bytes\)"
)
_PINNED_NBYTES = re.compile(r"(?:failed to alloc|pinned host memory of size:) (\d{1,20})\b")
_BEFORE_START = re.compile(
    r"(?:cuDevicePrimaryCtxRetain|unable to create StreamExecutor|failed initializing"
    r" StreamExecutor).{0,500}?OUT_OF_MEMORY"
)
_CUDNN = re.compile(r"Could not create cudnn handle|CUDNN_STATUS_(?:INTERNAL_ERROR|ALLOC_FAILED)")
_SAYS = re.compile(
    r"Ran out of memory (?:in memory space|on) \w+|exceeding available bytes"
    r"|Aborting compilation early|exceeds the base limit|BufferAssignment (?:OOM Debugging|stats)"
    r"|Total hbm usage >=|Program hbm requirement|Largest program allocations in hbm"
    r"|(?:total memory required|total_hbm_usage)|Peak buffers:"
)
_ENTRY = re.compile(r"^[^\S\n]*+(?:\d+\.|Buffer \d+:?)\s*Size: ", re.MULTILINE)
# What opens the part of a log that is about a lack of memory.
OPENS = re.compile(
    "|".join(
        [
            *(REQUEST.pattern, _SAYS.pattern, _BEFORE_START.pattern, _CUDNN.pattern),
            *(r"^\s*\d+\. Size: \d", r"^\s*Buffer 1:\s*$", f"(?i:{_HOST.pattern})"),
            _PINNED.pattern,
        ]
    )
)
_NEEDS = re.compile(
    rf"Used {SIZE} of |HLO temporaries \({SIZE}\)|Requires {SIZE}, has|Hbm usage: {SIZE}, Sparse"
)
_SPACE = re.compile(r"memory space (\w+)|Ran out of memory on (\w+)")
_EARLY = re.compile(rf"unlikely to have enough memory\. Requires {SIZE}, has {SIZE}")
_FREE = re.compile(rf"There are {SIZE} free(?:, {SIZE} reserved, and {SIZE} reservable)?")
_AVAILABLE = re.compile(rf"{SIZE} bytes allocatable, {SIZE} bytes available")
_CONTIGUOUS = re.compile(rf"[Ll]argest contiguous region of free memory (?:is )?{SIZE}")
_EXCEEDS = re.compile(rf"would exceed memory \(size={SIZE}\)")
_BASE = re.compile(
    r"byte size of input/output arguments \((\d{1,20})\) exceeds the base limit \((\d{1,20})\)"
)
_PROGRAMS = (
    re.compile(r"HLO module: ([\w.-]*\w)"),
    re.compile(r"Error loading program '([^']+)'"),
    re.compile(r"executable_name='([^']+)'"),
)
_CALLED = re.compile(r'op_name="p?jit\((\w+)\)/')
_GPU = re.compile(
    r"CUDA|cuda|GPU|HIP_|ROCM|rocm|BufferAssignment|device ordinal|cuMem|Peak buffers|_bfc\b"
    r"|Out of memory while trying"
)
_TPU = re.compile(r"hbm|HBM|TPU|memory space \w?mem\b|at the bottom of memory")
_RESERVED = re.compile(rf"^[^\S\n]*+reserved\s++{SIZE}", re.MULTILINE)
_ARGUMENTS = re.compile(rf"^[^\S\n]*+arguments\s++{SIZE}", re.MULTILINE)
_OUTPUTS = re.compile(rf"Output size {SIZE}; shares {SIZE} with arguments")
_TEMP = re.compile(
    rf"^[^\S\n]*+HLO temp\s++{SIZE}(?: \((?P<used>[\d.]+)% utilization"
    rf"(?:: Unpadded \({SIZE}\) Padded \({SIZE}\))?"
    rf"(?:, [\d.]+% fragmentation \({SIZE}\))?)?",
    re.MULTILINE,
)
_STATS = {
    "argument_nbytes": rf"parameter allocation: +{SIZE}",
    "constant_nbytes": rf"constant allocation: +{SIZE}",
    "output_nbytes": rf"maybe_live_out allocation: +{SIZE}",
    "temp_nbytes": rf"preallocated temp allocation: +{SIZE}",
    "fragmentation_nbytes": rf"total fragmentation: +{SIZE}",
}


def requested(line: str) -> int | None:
    """Return the bytes of the allocation that a line says has failed; None if it says of none."""
    found = REQUEST.search(line)
    if found is None:
        return None
    number, unit = (group for group in found.groups() if group is not None)
    exact = _EXACT.match(line, found.end())
    return int(exact[1]) if exact else nbytes(number, unit)


def rematerialized(line: str) -> Rematerialized | None:
    """Return what a line says of XLA's attempt to make a program smaller; None if of none."""
    found = _REMATERIALIZED.search(line) if "rematerialization" in line else None
    return None if found is None else Rematerialized(int(found[2]), int(found[1]))


def needed(line: str) -> int | None:
    """Return the bytes that a line says a whole program needs; None if it does not say."""
    found = _NEEDS.search(line)
    if found is None:
        return None
    number, unit = [group for group in found.groups() if group is not None][:2]
    return nbytes(number, unit)


def parse_failure(lines: Sequence[str], pool: OomPool) -> Failure | None:
    """Return the lack of memory that some lines of a log are about; None if they are about none.

    Args:
      lines: the lines, without prefixes, those together that a terminal broke.
      pool: what the log says of the allocator.
    """
    text = "\n".join(lines)
    sentence = next((line for line in lines if OPENS.search(line)), "")
    if _HOST.search(text) and not REQUEST.search(text):
        return Failure(_cut(sentence), phase="run", memory="host")
    if _PINNED.search(text) and not any(map(requested, filterfalse(_PINNED.search, lines))):
        asked = _PINNED_NBYTES.search(text)
        nbytes_asked = int(asked[1]) if asked else _last(requested(line) for line in lines)
        return Failure(
            _cut(sentence), "gpu", "run", memory="pinned-host", requested_nbytes=nbytes_asked
        )
    space = _SPACE.search(text)
    memory: Memory = "device"
    if space is not None and (space[1] or space[2]).lower() != "hbm":
        memory = "on-chip"
    if _before_start(text):
        return Failure(_cut(sentence), "gpu", "start", pool=pool, before_start=True)
    if _CUDNN.search(text) and not REQUEST.search(text):
        if pool.device_free_nbytes is None:
            return None
        return Failure(_cut(sentence), "gpu", "start", pool=pool)
    needs = None if memory == "on-chip" else parse_out_of_memory(text)
    buffers = needs.buffers if needs and needs.buffers else listed(text)
    required = needs.required_nbytes if needs else None
    capacity = needs.capacity_nbytes if needs else None
    if found := _EARLY.search(text):
        required, capacity = nbytes(*found.group(1, 2)), nbytes(*found.group(3, 4))
    if found := _EXCEEDS.search(text):
        capacity = nbytes(*found.group(1, 2))
    failure = Failure(
        said=_cut(sentence),
        platform=_platform(text),
        phase=_phase(text),
        memory=memory,
        program=_program(text),
        required_nbytes=required,
        capacity_nbytes=capacity,
        requested_nbytes=_last(requested(line) for line in lines),
        pool=_pool(text, pool),
        parts=_parts(text),
        buffers=buffers,
    )
    return _with_base(failure, text)


def _before_start(text: str) -> bool:
    return bool(_BEFORE_START.search(text)) and not _SAYS.search(text)


def _with_base(failure: Failure, text: str) -> Failure:
    """Return a failure with what XLA:GPU says of arguments that are larger than the device."""
    found = _BASE.search(text)
    if found is None:
        return failure
    parts = failure.parts
    if parts.argument_nbytes is None and parts.output_nbytes is None:
        parts = replace(parts, argument_nbytes=int(found[1]))
    return replace(
        failure,
        parts=parts,
        phase=failure.phase or "compile",
        required_nbytes=failure.required_nbytes or int(found[1]),
        capacity_nbytes=failure.capacity_nbytes or int(found[2]),
    )


def _platform(text: str) -> OneOf["tpu", "gpu", "cpu", ""]:
    if _TPU.search(text) or _TPU_ALLOCATION.search(text):
        return "tpu"
    if _GPU.search(text):
        return "gpu"
    return "cpu" if "Out of memory allocating" in text else ""


def _phase(text: str) -> Phase:
    if re.search(r"Error loading program|at the bottom of memory", text):
        return "load"
    if re.search(r"Error allocating device buffer|Could not allocate", text):
        return "transfer"
    if re.search(
        r"compile permanent error|CompileTime|HLO temporaries|Aborting compilation|Compilation"
        r" failure|Program hbm requirement|exceeding available bytes|Total hbm usage",
        text,
    ):
        return "compile"
    if re.search(
        r"Execution of replica|BufferAssignment|while running replica|ran out of memory trying"
        r"|Out of memory (?:while|allocating)|Failed to allocate request|cuMemAllocAsync",
        text,
    ):
        return "run"
    return "compile" if "Ran out of memory in memory space" in text else ""


def _program(text: str) -> str:
    for pattern in _PROGRAMS:
        if found := pattern.search(text):
            return found[1]
    called = set(_CALLED.findall(text))
    return f"jit_{next(iter(called))}" if len(called) == 1 else ""


def _pool(text: str, pool: OomPool) -> OomPool:
    if found := _FREE.search(text):
        free = nbytes(*found.group(1, 2))
        largest = nbytes(*found.group(5, 6)) if found[5] else None
        return replace(pool, free_nbytes=free, largest_free_nbytes=largest)
    if found := _AVAILABLE.search(text):
        largest, free = nbytes(*found.group(1, 2)), nbytes(*found.group(3, 4))
        return replace(pool, free_nbytes=free, largest_free_nbytes=largest)
    if found := _CONTIGUOUS.search(text):
        return replace(pool, largest_free_nbytes=nbytes(*found.group(1, 2)))
    return pool


def _parts(text: str) -> OomParts:
    """Return what a program's memory is made of, by the tables of libtpu and of XLA:GPU."""
    found = {name: _size(pattern, text) for name, pattern in _STATS.items()}
    if any(value is not None for value in found.values()):
        return OomParts(**found)
    temp = _TEMP.search(text)
    outputs = _OUTPUTS.search(text)
    parts = OomParts(
        argument_nbytes=_size(_ARGUMENTS.pattern, text),
        output_nbytes=None
        if outputs is None
        else max(nbytes(*outputs.group(1, 2)) - nbytes(*outputs.group(3, 4)), 0),
        reserved_nbytes=_size(_RESERVED.pattern, text),
    )
    if temp is None:
        return parts
    total = nbytes(temp[1], temp[2])
    gaps = nbytes(temp[8], temp[9]) if temp[8] else None
    if temp[4]:
        padding = nbytes(temp[6], temp[7]) - nbytes(temp[4], temp[5])
    elif temp["used"]:
        padding = round(total * (1 - float(temp["used"]) / 100)) - (gaps or 0)
    else:
        return replace(parts, temp_nbytes=total)
    return replace(
        parts, temp_nbytes=total, padding_nbytes=max(padding, 0), fragmentation_nbytes=gaps
    )


def _size(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text, re.MULTILINE)
    return None if found is None else nbytes(found[1], found[2])


def _last(values: Iterator[int | None]) -> int | None:
    """Return the last number: an exact one follows the one that is rounded."""
    known = [value for value in values if value is not None]
    return known[-1] if known else None


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LENGTH else text[: _LENGTH - 1] + "…"
