"""Parse XLA's out-of-memory messages: how much a program needs, and how much there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxresid.results import BufferKind
from jaxresid.xla.hlo.buffers import MAX_BUFFERS, LiveBuffers
from jaxresid.xla.hlo.sizes import SIZE, nbytes
from jaxresid.xla.job import PeakBuffer

# libtpu's; the first is that of 2026 and, whatever it says, counts arguments and outputs too.
_NEEDS = (
    rf"memory required for HLO temporaries \({SIZE}\) exceeds available HBM \({SIZE}\)",
    rf"Used {SIZE} of {SIZE} hbm",
)
_CORES = re.compile(
    rf"TensorCore Hbm usage: {SIZE}, SparseCore Hbm usage:? {SIZE}, "
    rf"exceeding available bytes: {SIZE}"
)
# Of the GPU's and CPU's allocators, that fail while a program runs or is loaded.
_TOTAL = re.compile(rf"^ *total allocation: +{SIZE}", re.MULTILINE)
_ENTRY = re.compile(r"^[^\S\n]*+(?:\d+\.|Buffer \d+:)\s*+(?=Size:)", re.MULTILINE)
_ALLOCATOR = re.compile(r"Out of memory (?:while trying to allocate|allocating) \d+ bytes")


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The memory that a program needs where it needs more than there is.

    Attributes:
      required_nbytes: the bytes that the program needs on one device: arguments, outputs,
        temporaries; None where the message does not say.
      capacity_nbytes: the bytes that there are; None where the message does not say.
      buffers: the largest buffers, where the message lists them.
      notes: what is not exact about the figures.
    """

    required_nbytes: int | None
    capacity_nbytes: int | None = None
    buffers: tuple[PeakBuffer, ...] = ()
    notes: tuple[str, ...] = ()


def parse_out_of_memory(message: str) -> OutOfMemory | None:
    """Return what a compiler's message says about a device's memory.

    None if it is about something else, such as a kernel that needs more than the memory on the
    chip.
    """
    for pattern in _NEEDS:
        found = re.search(pattern, message)
        if found:
            required, capacity = nbytes(found[1], found[2]), nbytes(found[3], found[4])
            return OutOfMemory(required, capacity, listed(message), _rounded(found[1] + found[2]))
    found = _CORES.search(message)
    if found:
        required = nbytes(found[1], found[2]) + nbytes(found[3], found[4])
        capacity = nbytes(found[5], found[6])
        return OutOfMemory(required, capacity, listed(message), _rounded(found[3] + found[4]))
    total = _TOTAL.search(message)
    if total:
        required = nbytes(total[1], total[2])
        return OutOfMemory(required, None, listed(message), _rounded(total[1] + total[2] + "iB"))
    return OutOfMemory(None) if _ALLOCATOR.search(message) else None


def refined(parsed: OutOfMemory, live: LiveBuffers) -> OutOfMemory:
    """Return a message's figures with the exact bytes and buffers of its buffer assignment.

    A message whose figure differs from the assignment's by more than 1 % is about something else:
    it is returned as it is.
    """
    exact, said = live.allocated_nbytes, parsed.required_nbytes
    if exact is None or said is None or abs(exact - said) > said // 100:
        return parsed
    return replace(
        parsed, required_nbytes=exact, buffers=live.buffers or parsed.buffers, notes=live.notes
    )


def _rounded(figure: str) -> tuple[str, ...]:
    return (f"XLA's message rounds the memory that the program needs, {figure}",)


def listed(message: str) -> tuple[PeakBuffer, ...]:
    """Return the entries of `Largest program allocations in hbm` (TPU) and `Peak buffers` (GPU)."""
    found = sorted(_entries(message), key=lambda buffer: -buffer.nbytes)
    return tuple(found[:MAX_BUFFERS])


def _entries(message: str) -> Iterator[PeakBuffer]:
    for entry in _ENTRY.split(message)[1:]:
        size = re.match(rf"Size: {SIZE}", entry)
        if size is None:
            continue
        shape = re.search(r"(?:^|\s)(?:Shape|Entry Parameter Subshape): (\w+\[[\d,]*\])", entry)
        label = re.search(r"XLA [Ll]abel: (?:\S+ = (?:\S+\[\S* )?)?([a-z][\w-]*)", entry)
        kind = re.search(r"Allocation type: (.*)", entry)
        yield PeakBuffer(
            kind=_kind(kind[1] if kind else "", entry),
            nbytes=nbytes(size[1], size[2]),
            shape=shape[1] if shape else "",
            opcode=label[1] if label else "",
            op_name=_quoted("op_name", entry),
            file=_quoted("source_file", entry),
            line=_line(entry),
        )


def _kind(allocation: str, entry: str) -> BufferKind:
    words = f"{allocation} {'parameter' if 'Entry Parameter' in entry else ''}".lower()
    kinds: tuple[tuple[BufferKind, tuple[str, ...]], ...] = (
        ("argument", ("argument", "parameter")),
        ("output", ("output", "live-out", "live_out")),
        ("constant", ("constant",)),
    )
    for kind, marks in kinds:
        if any(mark in words for mark in marks):
            return kind
    return "temporary"


def _quoted(name: str, entry: str) -> str:
    found = re.search(rf'\b{name}="([^"]*)"', entry)
    return found[1] if found else ""


def _line(entry: str) -> int:
    found = re.search(r"\bsource_line=(\d{1,9})", entry)
    return int(found[1]) if found else 0
