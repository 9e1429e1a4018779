"""Find the files that a rule could report on: by their bytes first, then by names in the tree.

Both steps let too much through rather than too little; what they drop cannot hold a finding.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Set

from jaxresid.base.text.wide_encodings import wide_encoding
from jaxresid.linter.text.source import SourceText
from jaxresid.linter.text.trees import walk

# What a file must mention for the checkpoint rules to have anything to say.
CHECKPOINT_MARKERS = (b"checkpoint", b"remat")
# Every library whose checkpoint we know mentions one of these in its import.
_LIBRARIES = (b"jax", b"flax", b"haiku", b"equinox", b"keras", b"haliax")
# `checkpoint` or `remat` as a whole identifier that is called, bound or imported, or one of the
# longer names. `orbax.checkpoint.X` and `save_checkpoint` are none of these.
# The literal comes first and the look behind it after: the other way round re searches ten times
# slower.
_IDENTIFIER = re.compile(
    rb"checkpoint(?:_name\b|_policies\b|\b(?:(?<=filter_checkpoint)|(?<=ad_checkpoint)"
    rb"|(?<=new_checkpoint)|(?<!\wcheckpoint)(?!\s*\.)))"
)
_SHORT_IDENTIFIER = re.compile(
    rb"remat(?:_scan\b|\b(?:(?<=new_remat)|(?<=custom_remat)|(?<!\wremat)(?!\s*\.)))"
)
_IDENTIFIERS = frozenset(
    """
    checkpoint remat remat_scan filter_checkpoint checkpoint_name checkpoint_policies ad_checkpoint
    new_checkpoint new_remat custom_remat
    """.split()
)
SUPPRESSION_MARKER = b"jaxresid:"


def mentions(raw: bytes, markers: Set[bytes]) -> bool:
    """Return whether a file's bytes could concern rules with these markers, or suppress one."""
    if wide_encoding(raw):
        raw = raw.replace(b"\0", b"")
    if SUPPRESSION_MARKER in raw:
        return True
    more = any(marker in raw for marker in markers if marker not in CHECKPOINT_MARKERS)
    if not more and b"checkpoint" not in raw and b"remat" not in raw:
        return False
    if not any(library in raw for library in _LIBRARIES):
        return False
    return more or _IDENTIFIER.search(raw) is not None or _SHORT_IDENTIFIER.search(raw) is not None


_TOKEN = re.compile(
    rb"""\#[^\r\n]*
      | (?P<prefix>(?<!\w)[rRbBuUfFtT]{1,2})?(?:
          \"\"\"[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*\"\"\"
        | '''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''
        | "(?!"")[^"\\\r\n]*(?:\\(?:\r\n|.)[^"\\\r\n]*)*"
        | '(?!'')[^'\\\r\n]*(?:\\(?:\r\n|.)[^'\\\r\n]*)*'
        | (?P<open>["'])
      )""",
    re.VERBOSE | re.DOTALL,
)
_FORMATTED = frozenset(b"fFtT")


def mentions_in_code(raw: bytes, markers: Set[bytes]) -> bool:
    """Return whether a module's bytes could concern rules with these markers, or suppress one.

    In doubt they could: where a string does not end, and for what is in an f-string.
    """
    if not mentions(raw, markers):
        return False
    others = (marker for marker in markers if marker not in CHECKPOINT_MARKERS)
    if SUPPRESSION_MARKER in raw or any(marker in raw for marker in others):
        return True
    if wide_encoding(raw):
        return True
    found = (m.start() for regex in (_IDENTIFIER, _SHORT_IDENTIFIER) for m in regex.finditer(raw))
    return any_in_code(raw, found)


def any_in_code(raw: bytes, found: Iterable[int]) -> bool:
    """Return whether one of some places of a module is in neither a comment nor a string.

    In doubt it is: where a string does not end, and for what is in an f-string.

    Args:
      raw: the module's bytes.
      found: the places, as offsets.
    """
    places = sorted(found, reverse=True)
    for token in _TOKEN.finditer(raw):
        if not places or places[-1] < token.start() or token["open"]:
            break
        if not _FORMATTED.isdisjoint(token["prefix"] or b""):
            opened, closed = raw.count(b"{", *token.span()), raw.count(b"}", *token.span())
            if places[-1] < token.end() or opened != closed:
                break
        while places and places[-1] < token.end():
            places.pop()
    return bool(places)


def confirms(tree: ast.Module, markers: Set[bytes], source: SourceText) -> bool:
    """Return whether the tree uses one of the names as code, not in a comment or a string.

    Only statements are looked into that have one of the markers in their text.

    Args:
      tree: the tree of a module.
      markers: what the rules that are on have to say something about.
      source: the source of the tree.
    """
    others = {m.decode() for m in markers if m not in CHECKPOINT_MARKERS}
    rows = sorted(_rows({*others, *(m.decode() for m in CHECKPOINT_MARKERS)}, source))
    for statement in tree.body:
        decorators = getattr(statement, "decorator_list", ())
        start = min([statement.lineno, *(d.lineno for d in decorators)])
        end = statement.end_lineno or start
        if bisect_left(rows, start) < bisect_right(rows, end) and _uses(
            statement, _IDENTIFIERS | others
        ):
            return True
    return False


def _rows(words: Iterable[str], source: SourceText) -> Iterator[int]:
    """Yield the rows of a source that mention words."""
    for word in words:
        at = source.text.find(word)
        while at >= 0:
            yield source.position(at)[0]
            at = source.text.find(word, at + len(word))


def _uses(statement: ast.stmt, wanted: Set[str]) -> bool:
    for node in walk(statement):
        if isinstance(node, ast.Name):
            found = node.id in wanted
        elif isinstance(node, ast.Attribute):
            found = node.attr in wanted
        elif isinstance(node, ast.alias):  # those of an ImportFrom are nodes of their own
            found = not wanted.isdisjoint(node.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            found = not wanted.isdisjoint((node.module or "").split("."))
        else:
            continue
        if found:
            return True
    return False
