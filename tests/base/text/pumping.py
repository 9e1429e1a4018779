"""Pump a regular expression: match it against long texts made from its own structure.

A pattern that backtracks does so on a text that begins as the pattern does, goes on with what one
of its repeats takes, many times, and ends in what it cannot match. Where a search may begin
anywhere, so does a text that begins again and again.
"""

import itertools
import re
import signal
import time
from contextlib import contextmanager
from re import _constants as op
from re import _parser as parser
from typing import NamedTuple

# Characters to try where a class has many; what no pattern expects comes last.
_ALPHABET = "a1 _.#\n\\\"'([{)]},:;=-*?!%/<>|@~$&+^`ZA0\r\t\x00\xe9"
_SUFFIXES = ("", "\x00", "\n\x00", "a\x00")
_NVARIANTS = 5
_REPEATS = {op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT}
_NSHAPES = 400  # the most that are tried with a pattern
_FEW = 8  # a part that may be repeated at most so often is no loop


class Slow(NamedTuple):
    """A text on which a pattern takes too long: the text's shape, its length, and the seconds."""

    shape: str
    length: int
    seconds: float


class _OutOfTime(BaseException):
    pass


@contextmanager
def _at_most(seconds):
    def stop(*_):
        raise _OutOfTime

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# -- texts from the structure ----------------------------------------------------------------------


def _members(items):
    """Return characters of a class."""
    negated = items[0][0] is op.NEGATE
    chosen = []
    for kind, value in items:
        if kind is op.LITERAL:
            chosen.append(chr(value))
        elif kind is op.RANGE:
            chosen += [chr(value[0]), chr(value[1])]
        elif kind is op.CATEGORY:
            chosen += [c for c in _ALPHABET if _in_category(c, value)]
    if negated:
        return [c for c in _ALPHABET if not _is_in(c, items[1:])]
    return list(dict.fromkeys(chosen))


def _in_category(character, category):
    tests = {
        op.CATEGORY_DIGIT: r"\d",
        op.CATEGORY_NOT_DIGIT: r"\D",
        op.CATEGORY_SPACE: r"\s",
        op.CATEGORY_NOT_SPACE: r"\S",
        op.CATEGORY_WORD: r"\w",
        op.CATEGORY_NOT_WORD: r"\W",
    }
    return re.match(tests[category], character) is not None


def _is_in(character, items):
    for kind, value in items:
        if kind is op.LITERAL and ord(character) == value:
            return True
        if kind is op.RANGE and value[0] <= ord(character) <= value[1]:
            return True
        if kind is op.CATEGORY and _in_category(character, value):
            return True
    return False


def _spread(choices):
    """Return a few of some texts, the first and the last among them."""
    return _evenly(list(dict.fromkeys(choices)), _NVARIANTS)


def _evenly(choices, count):
    if len(choices) <= count:
        return choices
    step = (len(choices) - 1) / (count - 1)
    return [choices[round(i * step)] for i in range(count)]


def _inner(kind, value):
    """Return the sequences inside a node."""
    if kind is op.SUBPATTERN:
        return [value[-1]]
    if kind is op.ATOMIC_GROUP:
        return [value]
    if kind in _REPEATS:
        return [value[2]]
    if kind is op.BRANCH:
        return value[1]
    if kind in {op.ASSERT, op.ASSERT_NOT}:
        return [value[1]]
    return []


def _examples(node):
    """Return texts that a node may match."""
    kind, value = node
    if kind is op.LITERAL:
        return [chr(value)]
    if kind is op.NOT_LITERAL:
        return _spread(c for c in _ALPHABET if ord(c) != value)
    if kind is op.ANY:
        return ["a", " "]
    if kind is op.IN:
        return _spread(_members(value))
    if kind in _REPEATS:
        low = value[0]
        texts = _of_sequence(value[2])
        return _spread(itertools.chain((t * max(low, 1) for t in texts), [""] * (not low)))
    if kind in {op.SUBPATTERN, op.ATOMIC_GROUP}:
        return _of_sequence(_inner(kind, value)[0])
    if kind is op.BRANCH:
        return _spread(
            itertools.chain.from_iterable(zip(*_padded(map(_of_sequence, value[1])), strict=True))
        )
    return [""]  # assertions and places


def _padded(lists):
    lists = list(lists)
    most = max(map(len, lists))
    return [[*texts, *[texts[-1]] * (most - len(texts))] for texts in lists]


def _of_sequence(nodes):
    """Return texts that a sequence of nodes may match."""
    variants = [_examples(node) for node in nodes]
    most = max(map(len, variants), default=1)
    return _spread("".join(v[min(i, len(v) - 1)] for v in variants) for i in range(most))


def _loops(nodes, before=("",)):
    """Yield what may stand before a repeat, and what it repeats, for each of a sequence."""
    for node in nodes:
        kind, value = node
        if kind in _REPEATS and value[1] > _FEW:
            yield before, _of_sequence(value[2])
        for inside in _inner(kind, value):
            yield from _loops(inside, before)
        if kind in {op.ASSERT, op.ASSERT_NOT}:
            continue
        after = _examples(node)
        before = _spread(b + after[i % len(after)] for i, b in enumerate(_widened(before, after)))


def _widened(before, after):
    return [*before, *[before[0]] * (len(after) - len(before))]


def _beginnings(nodes, before=("",)):
    """Yield what the first nodes of a sequence match: one more of them each time."""
    for node in nodes:
        kind, value = node
        if kind in {op.SUBPATTERN, op.ATOMIC_GROUP, op.BRANCH}:
            for inside in _inner(kind, value):
                yield from _beginnings(inside, before)
        after = _examples(node)
        before = _spread(b + after[i % len(after)] for i, b in enumerate(_widened(before, after)))
        yield from before


def shapes(pattern):
    """Return (before, repeated, after) of the texts to try with a pattern."""
    tree = parser.parse(pattern.pattern, pattern.flags)
    found = {}
    for before, repeated in _loops(tree):
        for start, body in itertools.product(before, repeated):
            if not body:
                continue
            for after in _SUFFIXES:
                found[start, body, after] = None
            found["", start + body, ""] = None
        for one, other in itertools.combinations(repeated, 2):
            found[before[0], one + other, "\x00"] = None
    for start in _beginnings(tree):
        for between in ("", "\n", " "):
            if start + between:
                found["", start + between, ""] = None
    return _evenly(list(found), _NSHAPES)


# -- measuring -------------------------------------------------------------------------------------


def _run(pattern, method, text):
    if method in {"match", "fullmatch"}:
        getattr(pattern, method)(text)
    else:
        for _ in pattern.finditer(text):
            pass


def _seconds(pattern, method, text, limit):
    """Return the CPU time of one use of a pattern, or the limit where it takes that long."""
    start = time.process_time()
    try:
        with _at_most(limit):
            _run(pattern, method, text)
    except _OutOfTime:
        return limit
    return time.process_time() - start


def pump(pattern, methods=("match", "fullmatch", "finditer"), *, length=40_000, limit=0.02):
    """Return a text on which a pattern takes too long, None if there is none.

    What takes half a second for 1 MB takes 20 ms for 40 kB, the defaults: linear patterns take a
    tenth of that, quadratic ones ten times as long.
    """
    for before, repeated, after in shapes(pattern):
        text = before + repeated * (length // len(repeated)) + after
        if isinstance(pattern.pattern, bytes):
            text = text.encode("latin-1", "replace")
        for method in methods:
            # A machine may be busy: what is slow is slow three times.
            times = [_seconds(pattern, method, text, 5 * limit)]
            while times[-1] >= limit and len(times) < 3:
                times.append(_seconds(pattern, method, text, 5 * limit))
            if times[-1] >= limit:
                shape = f"{method}: {before!r} + {repeated!r} * n + {after!r}"
                return Slow(shape, len(text), min(times))
    return None
