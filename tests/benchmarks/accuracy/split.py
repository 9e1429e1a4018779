"""Which set a program is in: `fit`, `conform` or `test`, by a hash of its family's name.

The rules of the estimate are fitted to the first, its intervals are made from the second, and the
third is scored once, at the end. Programs that differ in their checkpoints alone are one family,
so that no set knows another's programs. The hash was chosen before any of these programs was
compiled for this purpose: neither it nor the names of families may change. The rules for TPUs were
first written with `zoo.py` as a whole: for them only `random:` and the libraries are unseen
(`score --only`).

The test set of `second-order:` was scored twice while its rules were mended, so that ranges are
made of it now; what is judged with instead is `judging-second-order:`, as a whole.
"""

from __future__ import annotations

import hashlib

SETS = ("fit", "conform", "test")
# The last digit of the hash -> its set: half, a fifth, three tenths.
_BY_DIGIT = ("fit",) * 5 + ("conform",) * 2 + ("test",) * 3


def set_of(family: str) -> str:
    """Return the set of the programs of a family."""
    kind = family.partition(":")[0]
    if kind == "judging-second-order":
        return "test"
    digest = hashlib.sha256(family.encode()).hexdigest()
    drawn = _BY_DIGIT[int(digest, 16) % 10]
    return "conform" if (kind, drawn) == ("second-order", "test") else drawn
