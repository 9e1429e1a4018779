"""Handle comments that silence violations: find, apply and add them, and report unused ones.

Ours are `# jaxresid: ignore[JXR101]`, `# jaxresid: ignore` and, on a line of its own,
`# jaxresid: file-ignore[JXR101]`; the brackets hold codes, prefixes of codes, or rule names. The
forms that ruff and flake8 read are understood too: `# noqa`, `# noqa: JXR101` and, for a file,
`# ruff: noqa: JXR101`. Without codes, `# ruff: noqa` and `# flake8: noqa` exempt a file from those
tools alone: they stand where imports are re-exported or code was generated.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from jaxresid.base.text.nearest import did_you_mean
from jaxresid.base.violations import Edit, Fix, Span, Violation
from jaxresid.linter.text.lexer import LINE_END, Comment, Scan, scan

CODE = "JXR001"
NAME = "unused-suppression"
UNSUPPRESSABLE = frozenset({"invalid-configuration", "invalid-syntax", "over-limit", "unreadable"})

Kind = Literal["ignore", "file-ignore", "noqa", "file-noqa", "malformed"]


class Code(NamedTuple):
    """A code, a prefix of codes or a rule's name inside a suppression."""

    text: str
    span: Span


class Suppression(NamedTuple):
    """One suppression; a comment can hold several.

    Attributes:
      span: from its `#` to the end of its codes, or of the reason that follows in ours.
      kind: its form.
      codes: what it silences; empty for everything.
      rows: the rows it covers, None for the whole file.
      problem: for `malformed`, which silences nothing: what is wrong with it.
    """

    span: Span
    kind: Kind
    codes: tuple[Code, ...]
    rows: tuple[int, ...] | None
    problem: str = ""

    @property
    def is_ours(self) -> bool:
        """Return whether it is in jaxresid's own form."""
        return self.kind in {"ignore", "file-ignore"}


class Suppressions(NamedTuple):
    """The suppressions of one module, in source order, and its lines where it has any."""

    items: tuple[Suppression, ...] = ()
    lines: tuple[str, ...] = ()


# --- reading suppressions

_OURS = re.compile(r"(?<!#)#++\s*+jaxresid\s*:\s*(?P<word>[a-z][\w-]*)", re.IGNORECASE)
_NOQA = re.compile(
    r"(?<!#)#++\s*+(?P<file>(?:ruff|flake8)\s*:\s*)?noqa(?:(?P<colon>\s*:)|(?=[\s#]|\Z))",
    re.IGNORECASE,
)
_NEXT = re.compile(r"(?<!#)#++\s*+[A-Za-z!]")
_BRACKETS = re.compile(r"\s*\[([^\]]*)\]")
_UNBRACKETED = re.compile(r"\s*[\[(:=]|\s+[A-Z]{2,3}\d+")
_NOQA_CODES = re.compile(r"(?:[A-Z]+[0-9]+)+(?=[\s,#]|\Z)")
_NOQA_CODE = re.compile(r"(?<![A-Z])[A-Z]++[0-9]++")
_LIKE_OURS = re.compile(r"JXR\d+")
_FORMS = "write `ignore[CODE]`, or `file-ignore[CODE]` on a line of its own"


def parse(text: str) -> Suppressions:
    """Return the suppressions of a module."""
    lower = text.lower()
    if "noqa" not in lower and "jaxresid" not in lower:
        return Suppressions()
    scanned = scan(text)
    lines = tuple(LINE_END.split(text))
    items = [
        item
        for comment in scanned.comments
        for item in sorted(
            [*_parse_ours(comment, scanned, lines), *_parse_noqa(comment)], key=lambda i: i.span
        )
    ]
    return Suppressions(tuple(items), lines if items else ())


def _parse_ours(comment: Comment, scanned: Scan, lines: tuple[str, ...]) -> Iterator[Suppression]:
    for match in _OURS.finditer(comment.text):
        word, start = match["word"].lower(), match.end()
        following = _NEXT.search(comment.text, start)
        end = following.start() if following else len(comment.text)
        end = len(comment.text[:end].rstrip())
        rest = comment.text[start:end]
        span = _within(comment, match.start(), end)
        brackets = _BRACKETS.match(rest)
        problem = ""
        if word not in {"ignore", "file-ignore"}:
            if not brackets:
                continue
            problem = f"`{word}` is not a suppression that jaxresid knows; {_FORMS}"
        elif not brackets and _UNBRACKETED.match(rest):
            problem = f"the codes are not in brackets; {_FORMS}"
        elif word == "file-ignore" and not comment.alone:
            problem = f"`file-ignore` shares its line with code; {_FORMS}"
        if problem:
            yield Suppression(span, "malformed", (), (comment.row,), problem)
            continue
        codes: tuple[Code, ...] = ()
        if brackets:
            at = start + brackets.start(1)
            found = re.finditer(r"[^\s,]+", brackets[1])
            codes = tuple(
                Code(m.group(), _within(comment, at + m.start(), at + m.end())) for m in found
            )
            if not codes:
                yield Suppression(span, "malformed", (), (comment.row,), "its brackets are empty")
                continue
        if word == "file-ignore":
            yield Suppression(span, "file-ignore", codes, None)
        else:
            yield Suppression(span, "ignore", codes, _rows(comment, scanned, lines))


def _parse_noqa(comment: Comment) -> Iterator[Suppression]:
    for match in _NOQA.finditer(comment.text):
        codes: list[Code] = []
        pos = match.end()
        if match["colon"]:
            codes = _noqa_codes(comment, pos)
            if not codes:
                continue
            pos = codes[-1].span.end_column - comment.column
        elif match["file"]:
            continue
        span = _within(comment, match.start(), pos)
        if not match["file"]:
            yield Suppression(span, "noqa", tuple(codes), (comment.row,))
        elif comment.alone:
            yield Suppression(span, "file-noqa", tuple(codes), None)


def _noqa_codes(comment: Comment, pos: int) -> list[Code]:
    """Return the codes after the colon, none where ruff would take none."""
    codes: list[Code] = []
    text = comment.text
    while True:
        while pos < len(text) and (text[pos].isspace() or text[pos] == ","):
            pos += 1
        run = _NOQA_CODES.match(text, pos)
        if run is None:
            # Letters and digits with something after them: a mistake, not the end of the list.
            return [] if _NOQA_CODE.match(text, pos) else codes
        codes += [
            Code(m.group(), _within(comment, m.start(), m.end()))
            for m in _NOQA_CODE.finditer(text, pos, run.end())
        ]
        pos = run.end()


def _within(comment: Comment, start: int, end: int) -> Span:
    return Span(comment.row, comment.column + start, comment.row, comment.column + end)


def _rows(comment: Comment, scanned: Scan, lines: tuple[str, ...]) -> tuple[int, ...]:
    """Return the rows that a line's `ignore` covers.

    They are its own row, and, when it is alone on its line, what follows.
    """
    if not comment.alone:
        return (comment.row,)
    index = bisect_left(scanned.logical, (comment.row,))
    if index and scanned.logical[index - 1][1] >= comment.row:
        # Between the brackets of a statement: the next row that holds something.
        last = scanned.logical[index - 1][1]
        below = (r for r in range(comment.row + 1, last + 1) if _holds_code(lines[r - 1]))
        return (comment.row, *([row] if (row := next(below, 0)) else ()))
    rows = [comment.row]
    for first, last in scanned.logical[index:]:
        rows += range(first, last + 1)
        if not lines[first - 1].lstrip().startswith("@"):
            break
    return tuple(rows)


def _holds_code(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


# --- applying them


def apply(
    violations: Iterable[Violation],
    suppressions: Suppressions,
    *,
    enabled: Callable[[str], bool],
    known: Mapping[str, str],
    optional: Collection[str] = (),
    path: str = "-",
) -> tuple[tuple[Violation, ...], tuple[Violation, ...]]:
    """Return the violations that are not silenced, and those that report unused suppressions.

    There is one of the latter (JXR001) for each part of a suppression that silences nothing.

    Args:
      violations: the violations of a module.
      suppressions: the suppressions of the module.
      enabled: whether the rule of a code was on. A part is judged only if all the rules that it
        names were: another run may need it.
      known: code -> name of every rule.
      optional: codes of rules that are off unless asked for; those need not have been on.
      path: the path of the file, for new violations.
    """
    known = {**known, CODE: NAME}
    items = suppressions.items
    covering = _by_row(items)
    used: set[tuple[int, int]] = set()
    kept = []
    for violation in violations:
        marks = {
            mark
            for index in _covering(covering, violation)
            if (mark := _silences(index, items[index], violation)) is not None
        }
        used |= marks
        if not marks:
            kept.append(violation)

    own: list[tuple[tuple[int, int], Violation]] = []
    unused = []
    for index, item in enumerate(items):
        for part, text in _parts(item):
            if (index, part) in used:
                continue
            targets = _targets(text, known)
            reason = _reason(item, text, targets, enabled, known, optional)
            if reason is None:
                continue
            violation = _unused(suppressions.lines, item, part, reason, path)
            if targets == {CODE}:
                own.append(((index, part), violation))
            else:
                unused.append(violation)

    # Only a suppression that names JXR001 silences it: others would silence their own uselessness.
    left = []
    for violation in unused:
        marks = {mark for mark, _ in own if _reaches(items[mark[0]], violation)}
        used |= marks
        if not marks:
            left.append(violation)
    left += [violation for mark, violation in own if mark not in used]
    return tuple(kept), tuple(sorted(left, key=lambda v: v.sort_key))


def _by_row(items: Sequence[Suppression]) -> dict[int | None, list[int]]:
    covering: dict[int | None, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        if item.kind != "malformed":
            for row in (None,) if item.rows is None else item.rows:
                covering[row].append(index)
    return covering


def _covering(by_row: Mapping[int | None, list[int]], violation: Violation) -> set[int]:
    if violation.code in UNSUPPRESSABLE:
        return set()
    return {index for row in (None, *_rows_of(violation)) for index in by_row.get(row, ())}


def _rows_of(violation: Violation) -> tuple[int, ...]:
    span = violation.span
    return violation.noqa_rows or tuple(range(span.row, max(span.row, span.end_row) + 1))


def _reaches(item: Suppression, violation: Violation) -> bool:
    return item.rows is None or not set(item.rows).isdisjoint(_rows_of(violation))


def _parts(item: Suppression) -> Iterator[tuple[int, str]]:
    """Yield the parts that are judged one by one; -1 for a suppression of everything."""
    if item.codes:
        for part, code in enumerate(item.codes):
            yield part, code.text
    else:
        yield -1, ""


def _silences(index: int, item: Suppression, violation: Violation) -> tuple[int, int] | None:
    """Return the first part of a suppression that names a violation, None if none does."""
    for part, text in _parts(item):
        if part < 0 or _names(text, violation.code, violation.name):
            return index, part
    return None


def _names(text: str, code: str, name: str) -> bool:
    if text in {code, name}:
        return True
    letters = code.rstrip("0123456789")
    return text.startswith(letters) and code.startswith(text)


def _targets(text: str, known: Mapping[str, str]) -> set[str]:
    return {code for code, name in known.items() if not text or _names(text, code, name)}


def _reason(
    item: Suppression,
    text: str,
    targets: set[str],
    enabled: Callable[[str], bool],
    known: Mapping[str, str],
    optional: Collection[str],
) -> str | None:
    """Return why an unused part is reported, None where it is not."""
    if item.kind == "malformed":
        return f"this suppression silences nothing: {item.problem}"
    if not text and not item.is_ours:
        return None
    if not targets:
        if not item.is_ours and not _LIKE_OURS.fullmatch(text):
            return None
        guess = did_you_mean(text, [word for pair in known.items() for word in pair])
        return f"`{text}` is not a rule of jaxresid{guess}"
    rules = targets - {CODE}
    if rules and not any(enabled(c) for c in rules):
        return None
    if not all(enabled(c) or c in optional for c in rules):
        return None
    what = f"`{text}`" if text else "this suppression"
    where = "in this file" if item.rows is None else "here"
    return f"{what} silences nothing {where}"


def _unused(
    lines: tuple[str, ...], item: Suppression, part: int, message: str, path: str
) -> Violation:
    fix = None
    if item.kind != "malformed":
        what = f" of {item.codes[part].text}" if part >= 0 else ""
        title = f"Remove the unused suppression{what}"
        fix = Fix(title, (_removal(lines, item, part),), "safe")
    return Violation(
        CODE,
        NAME,
        "warning",
        message,
        path,
        item.codes[part].span if part >= 0 else item.span,
        noqa_rows=(item.span.row,),
        help="remove it" if fix else "write it as jaxresid reads it",
        fix=fix,
    )


def _removal(lines: tuple[str, ...], item: Suppression, part: int) -> Edit:
    """Return the edit that removes one code, or all of a suppression that has no other."""
    row, codes = item.span.row, item.codes
    if len(codes) > 1:
        if part == 0:
            start, end = codes[0].span.column, codes[1].span.column
        else:
            start, end = codes[part - 1].span.end_column, codes[part].span.end_column
        return Edit(Span(row, start, row, end), "")
    line = lines[row - 1]
    before, after = line[: item.span.column], line[item.span.end_column :]
    if after.strip():
        skipped = len(after) - len(after.lstrip())
        comment = after.lstrip().startswith("#")
        end = item.span.end_column + skipped
        return Edit(Span(row, item.span.column, row, end), "" if comment else "# ")
    if before.strip():
        return Edit(Span(row, len(before.rstrip()), row, len(line)), "")
    if row < len(lines):
        return Edit(Span(row, 0, row + 1, 0), "")
    if row > 1:
        return Edit(Span(row - 1, len(lines[row - 2]), row, len(line)), "")
    return Edit(Span(row, 0, row, len(line)), "")


# --- adding them


def add(
    lines: Sequence[str], violations: Iterable[Violation], reason: str = "", *, newline: str = "\n"
) -> tuple[Edit, ...]:
    """Return the edits that silence violations by `# jaxresid: ignore[...]`.

    The comment goes to the end of the last row of the statement that can take one, into the
    brackets of one that covers the violation already, or, where no row can, onto a line of its own
    above the statement.

    Args:
      lines: the lines of the module.
      violations: the violations to silence.
      reason: text that follows the codes in new comments.
      newline: the line end of the file.
    """
    text = "\n".join(lines)
    scanned = scan(text)
    existing = [i for i in parse(text).items if i.kind == "ignore" and i.codes]
    merged: dict[int, set[str]] = defaultdict(set)
    appended: dict[int, set[str]] = defaultdict(set)
    above: dict[int, set[str]] = defaultdict(set)
    for violation in violations:
        if violation.code in UNSUPPRESSABLE:
            continue
        rows = sorted(r for r in _rows_of(violation) if 0 < r <= len(lines))
        index = max((i for i, item in enumerate(existing) if _reaches(item, violation)), default=-1)
        fit = [r for r in rows if r not in scanned.closed and lines[r - 1].strip()]
        if index >= 0:
            merged[index].add(violation.code)
        elif fit:
            appended[fit[-1]].add(violation.code)
        elif rows and scanned.logical:
            at = max(0, bisect_left(scanned.logical, (rows[0] + 1,)) - 1)
            above[scanned.logical[at][0]].add(violation.code)
    words = " ".join(reason.split())
    return tuple(
        sorted(
            [
                *(_merge(existing[index], codes) for index, codes in merged.items()),
                *(_append(lines[row - 1], row, codes, words) for row, codes in appended.items()),
                *(
                    _above(lines[row - 1], row, codes, words, newline)
                    for row, codes in above.items()
                ),
            ]
        )
    )


def _comment(codes: set[str], reason: str) -> str:
    return f"# jaxresid: ignore[{', '.join(sorted(codes))}] {reason}".rstrip()


def _merge(item: Suppression, codes: set[str]) -> Edit:
    last = item.codes[-1].span
    new = sorted(codes - {c.text for c in item.codes})
    at = Span(last.row, last.end_column, last.row, last.end_column)
    return Edit(at, "".join(f", {c}" for c in new))


def _append(line: str, row: int, codes: set[str], reason: str) -> Edit:
    return Edit(Span(row, len(line.rstrip()), row, len(line)), f"  {_comment(codes, reason)}")


def _above(line: str, row: int, codes: set[str], reason: str, newline: str) -> Edit:
    indent = line[: len(line) - len(line.lstrip())]
    return Edit(Span(row, 0, row, 0), f"{indent}{_comment(codes, reason)}{newline}")
