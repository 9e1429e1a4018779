"""Follow what an allocator says of its memory, line by line."""

from __future__ import annotations

import re

from jaxresid.results import OomPool
from jaxresid.xla.hlo.sizes import SIZE, nbytes

# What BFC lists of its chunks, up to millions of lines.
LISTING = re.compile(
    r"(?:InUse|Free|Chunk)\s+at \w+ of size |Bin(?: \(\d+\):| for )|Next region of size"
    r"|Chunks of size \d|Summary of in-use Chunks|Requested Size:"
)
_FREE_CHUNK = re.compile(r"Free\s+at \w+ of size (\d{1,20})\b")
_BAR = re.compile(r"^\s*([*_x]{50,})\s*$")
# A word that each of the figures below has, to look for them in no other line.
_ANY = re.compile(r"[Ll]imit|In_?[Uu]se|LargestFree|allocating|total|Total|free|Free|available")
_FIGURES = (
    ("limit_nbytes", re.compile(rf"(?:^\s*Limit:|memory_limit_:)\s+{SIZE}")),
    ("in_use_nbytes", re.compile(rf"^\s*InUse:\s+{SIZE}")),
    ("limit_nbytes", re.compile(rf"XLA backend allocating {SIZE}")),
    ("limit_nbytes", re.compile(rf"XLA backend will use up to {SIZE}")),
    ("device_nbytes", re.compile(rf"total memory reported: {SIZE}")),
)
_DEVICE = re.compile(
    rf"(?:Free memory/Total:\s*{SIZE}\s*/\s*{SIZE}|{SIZE} bytes free, {SIZE} bytes total)"
)


class PoolReader:
    """What one process's allocators have said so far."""

    def __init__(self) -> None:
        self._known: dict[str, int | float] = {}
        self._free: list[int] = [0, 0]
        self._listed = False

    def read(self, line: str) -> bool:
        """Take in a line of the log, and return whether it is one of a listing of chunks."""
        if LISTING.search(line):
            chunk = _FREE_CHUNK.search(line)
            self._listed = True
            if chunk:
                size = int(chunk[1])
                self._free = [self._free[0] + size, max(self._free[1], size)]
            return True
        if bar := _BAR.match(line):
            marks = bar[1]
            self._known["used_fraction"] = round(1 - marks.count("_") / len(marks), 2)
            return False
        if _ANY.search(line):
            for name, pattern in _FIGURES:
                if found := pattern.search(line):
                    self._known[name] = nbytes(found[1], found[2])
            if found := _DEVICE.search(line):
                numbers = [group for group in found.groups() if group is not None]
                self._known["device_free_nbytes"] = nbytes(numbers[0], numbers[1])
                self._known["device_nbytes"] = nbytes(numbers[2], numbers[3])
        return False

    def pool(self) -> OomPool:
        """Return what is known now, and begin the listing of chunks anew."""
        known = dict(self._known)
        limit, in_use = known.get("limit_nbytes"), known.get("in_use_nbytes")
        if limit is not None and in_use is not None:
            known["free_nbytes"] = max(limit - in_use, 0)
        if self._listed and self._free[0]:
            known["largest_free_nbytes"] = self._free[1]
            known.setdefault("free_nbytes", self._free[0])
        self._free, self._listed = [0, 0], False
        return OomPool(**known)  # type: ignore[arg-type]
