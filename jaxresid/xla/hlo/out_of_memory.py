"""Parse XLA's out-of-memory messages: how much a program needs, and how much there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxresid.results import BufferKind
from jaxresid.xla.hlo.buffers import MAX_BUFFERS, LiveBuffers
from jaxresid.xla.hlo.metadata import metadata_of
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
        figures = re.search(pattern, message)
        if figures:
            required, capacity = nbytes(figures[1], figures[2]), nbytes(figures[3], figures[4])
            return OutOfMemory(
                required, capacity, listed(message), _rounded(figures[1] + figures[2])
            )
    figures = _CORES.search(message)
    if figures:
        required = nbytes(figures[1], figures[2]) + nbytes(figures[3], figures[4])
        capacity = nbytes(figures[5], figures[6])
        return OutOfMemory(required, capacity, listed(message), _rounded(figures[3] + figures[4]))
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
    exact, rounded = live.allocated_nbytes, parsed.required_nbytes
    if exact is None or rounded is None or abs(exact - rounded) > rounded // 100:
        return parsed
    return replace(
        parsed, required_nbytes=exact, buffers=live.buffers or parsed.buffers, notes=live.notes
    )


def _rounded(figure: str) -> tuple[str, ...]:
    return (f"XLA's message rounds the memory that the program needs, {figure}",)


def listed(message: str) -> tuple[PeakBuffer, ...]:
    """Return the entries of `Largest program allocations in hbm` (TPU) and `Peak buffers` (GPU)."""
    entries = sorted(_entries(message), key=lambda buffer: -buffer.nbytes)
    return tuple(entries[:MAX_BUFFERS])


def _entries(message: str) -> Iterator[PeakBuffer]:
    for entry in _ENTRY.split(message)[1:]:
        size = re.match(rf"Size: {SIZE}", entry)
        if size is None:
            continue
        shape = re.search(r"(?:^|\s)(?:Shape|Entry Parameter Subshape): (\w+\[[\d,]*\])", entry)
        label = re.search(r"XLA [Ll]abel: (?:\S+ = (?:\S+\[\S* )?)?([a-z][\w-]*)", entry)
        kind = re.search(r"Allocation type: (.*)", entry)
        metadata = metadata_of(entry)
        yield PeakBuffer(
            kind=_kind(kind[1] if kind else "", entry),
            nbytes=nbytes(size[1], size[2]),
            shape=shape[1] if shape else "",
            opcode=label[1] if label else "",
            op_name=metadata.op_name,
            file=metadata.file,
            line=metadata.line,
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
