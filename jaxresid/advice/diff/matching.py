"""Match the residuals of two reports: what is the same, what changed, what came and what went."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxresid.advice.diff.lines import Line, Role, nbytes_of
from jaxresid.advice.diff.pairing import Pair, relation
from jaxresid.results import LineDifference, ValueDifference

_RELATED = 0.5  # of what `relation` says, so that a value may have moved between two lines


@dataclass(slots=True)
class _Row:
    """What becomes one `LineDifference`: a later line, or an earlier one that is gone.

    Attributes:
      before: the earlier line; None where it is new.
      after: the later line; None where it is gone.
      was: the residuals that it has now and had, wherever they were.
      now: the residuals that it has.
      values: those that differ.
    """

    before: Line | None = None
    after: Line | None = None
    was: Counter[Role] = field(default_factory=Counter)
    now: Counter[Role] = field(default_factory=Counter)
    peak_before_nbytes: int = 0
    values: list[ValueDifference] = field(default_factory=list)

    def difference(self) -> LineDifference:
        """Return it as a value of the model."""
        either = self.after or self.before
        assert either is not None
        return LineDifference(
            before=None if self.before is None else self.before.location,
            after=None if self.after is None else self.after.location,
            scope=either.modules,
            kept_before_nbytes=nbytes_of(self.was.items(), "device"),
            kept_after_nbytes=nbytes_of(self.now.items(), "device"),
            host_before_nbytes=nbytes_of(self.was.items(), "host"),
            host_after_nbytes=nbytes_of(self.now.items(), "host"),
            peak_before_nbytes=self.peak_before_nbytes,
            peak_after_nbytes=0 if self.after is None else self.after.peak_nbytes,
            values=tuple(sorted(self.values, key=lambda value: -abs(value.growth_nbytes))),
        )


def matched(
    before: Sequence[Line], after: Sequence[Line], pairs: Sequence[Pair]
) -> tuple[LineDifference, ...]:
    """Return all lines of two reports with what they kept and keep, also those that are the same.

    Args:
      before: the lines of the earlier report.
      after: those of the later one.
      pairs: which of them are one.
    """
    return _Matching(before, after, pairs).rows()


class _Matching:
    """The residuals that are not matched yet, and the rows that are known of."""

    def __init__(
        self, before: Sequence[Line], after: Sequence[Line], pairs: Sequence[Pair]
    ) -> None:
        self._before, self._after = before, after
        self._pairs = sorted(pairs, key=lambda pair: pair.after)
        self._earlier = [Counter(line.roles) for line in before]
        self._later = [Counter(line.roles) for line in after]
        self._rows = [_Row(after=line, now=Counter(line.roles)) for line in after]
        self._row_of = {pair.before: self._rows[pair.after] for pair in pairs}
        for pair in pairs:
            self._rows[pair.after].before = before[pair.before]
        # Where the residuals of an earlier line are now: how many in which row.
        self._went: dict[int, Counter[int]] = defaultdict(Counter)

    def rows(self) -> tuple[LineDifference, ...]:
        """Return the rows, having matched what can be matched; surest first."""
        sure = [pair for pair in self._pairs if pair.is_sure]
        for pair in self._pairs:
            self._match(pair.before, pair.after, _exactly)
        for key in (_but_for_shape, _but_for_primitive, _but_for_dtype):
            for pair in sure:
                self._match(pair.before, pair.after, key)
        self._match_moved()
        for pair in self._pairs:
            self._match(pair.before, pair.after, _but_for_dtype)
        self._put_rest()
        return tuple(row.difference() for row in self._all_rows())

    def _match(self, i: int, j: int, key: Callable[[Role], Hashable]) -> None:
        """Match the residuals of an earlier and a later line that a key says are the same."""
        theirs: dict[Hashable, list[Role]] = defaultdict(list)
        for role in self._later[j]:
            theirs[key(role)].append(role)
        for role in list(self._earlier[i]):
            for other in theirs.get(key(role), ()):
                count = min(self._earlier[i][role], self._later[j][other])
                if count > 0:
                    self._take(i, role, j, other, count)

    def _take(self, i: int, role: Role, j: int, other: Role, count: int) -> None:
        self._earlier[i][role] -= count
        self._later[j][other] -= count
        row = self._rows[j]
        row.was[role] += count
        self._went[i][j] += count
        if role.aval.nbytes != other.aval.nbytes or role.aval.memory != other.aval.memory:
            row.values.append(
                ValueDifference(
                    "changed", count, other.primitive, other.name, None, role.aval, other.aval
                )
            )

    def _match_moved(self) -> None:
        """Match residuals of one role at lines that are no pair, most closely related ones first.

        That is how code is followed that was split up, or of which several copies are one now.
        """
        holders: dict[Role, list[int]] = defaultdict(list)
        for j, left in enumerate(self._later):
            for role in +left:
                holders[role].append(j)
        scored = []
        for i, left in enumerate(self._earlier):
            for role in +left:
                for j in holders.get(role, ()):
                    likely = relation(self._before[i], self._after[j])
                    if likely >= _RELATED:
                        scored.append((-likely, i, j, role))
        for _, i, j, role in sorted(scored, key=lambda each: each[:3]):
            count = min(self._earlier[i][role], self._later[j][role])
            if count > 0:
                self._take(i, role, j, role, count)

    def _put_rest(self) -> None:
        """Put what is in no match where it was, or where it is."""
        for j, left in enumerate(self._later):
            for role, count in (+left).items():
                self._rows[j].values.append(_added(role, count))
        for i, line in enumerate(self._before):
            row = self._row_of.get(i)
            rest = +self._earlier[i]
            if row is None and not rest and self._went[i]:
                row = self._rows[self._went[i].most_common(1)[0][0]]
            if row is None:
                row = self._row_of[i] = _Row(before=line)
            row.peak_before_nbytes += line.peak_nbytes
            row.was += rest
            row.values += [_removed(role, count) for role, count in rest.items()]

    def _all_rows(self) -> Iterator[_Row]:
        yield from self._rows
        yield from (row for row in self._row_of.values() if row.after is None)


def _exactly(role: Role) -> Hashable:
    return role


def _but_for_shape(role: Role) -> Hashable:
    return role.primitive, role.name, role.aval.dtype, role.aval.memory


def _but_for_primitive(role: Role) -> Hashable:
    """Of another version of JAX: `integer_pow` of one is `square` of another."""
    return role.aval.dtype, role.aval.shape, role.aval.shard, role.aval.memory


def _but_for_dtype(role: Role) -> Hashable:
    return role.primitive, role.name


def _added(role: Role, count: int) -> ValueDifference:
    return ValueDifference("added", count, role.primitive, role.name, None, None, role.aval)


def _removed(role: Role, count: int) -> ValueDifference:
    return ValueDifference("removed", count, role.primitive, role.name, None, role.aval, None)
