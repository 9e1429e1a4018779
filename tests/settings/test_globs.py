"""The globs of the configuration, against the definition of what each wildcard matches."""

import random
import re
import time

import pytest

from jaxresid.linter.run.discover import discover
from jaxresid.settings.config import Config, ConfigError, Options, load
from jaxresid.settings.globs import Glob, excluder, regex_of


def matches(glob, text):
    """Whether a glob of `*`, `?`, `**/`, `[ab]`, `{a,b}` and letters matches a text."""
    opened = re.match(r"(.*?)\{([^{}]*)\}(.*)", glob)
    if opened:
        before, inside, after = opened.groups()
        return any(matches(before + one + after, text) for one in inside.split(","))
    return _matches(re.findall(r"(?:(?<=^)|(?<=/))\*\*/|\*+|\[[^]]*\]|.", glob), text)


def _matches(pieces, text):
    if not pieces:
        return not text
    piece, *rest = pieces
    if piece == "**/":
        starts = [0, *(i for i in range(1, len(text) + 1) if text[i - 1] == "/")]
        return any(_matches(rest, text[i:]) for i in starts)
    if piece[0] == "*":
        return any(_matches(rest, text[i:]) for i in range(len(text) + 1))
    fits = bool(text) and (piece == "?" or text[0] in piece.strip("[]"))
    return fits and _matches(rest, text[1:])


def test_a_glob_matches_what_its_wildcards_do():
    rng = random.Random(5)
    pieces = ["a", "b", "/", "*", "?", "[ab]", "/**/", "/**/", "*a*", "{a,*b}", "{a,ab}"]
    matched = 0
    for _ in range(500):
        glob = re.sub("/+", "/", "".join(rng.choices(pieces, k=rng.randrange(1, 7))).lstrip("/"))
        matcher = re.compile(regex_of(glob))
        for _ in range(20):
            text = "".join(rng.choices("aab//", k=rng.randrange(1, 9)))
            expected = matches(glob, text)
            assert bool(matcher.fullmatch(text)) == expected, (glob, text)
            matched += expected
    assert matched > 500


@pytest.mark.parametrize(
    ("glob", "text"),
    [("**/b/**/b/c", "x/b/b/c"), ("**/*b*/**/b/c", "x/ab/b/c"), ("*ab*b*bc", "xabbbc")],
)
def test_a_part_is_matched_where_it_first_occurs(glob, text):
    assert re.fullmatch(regex_of(glob), text)
    assert not re.fullmatch(regex_of(glob), text[1:-1])


_NAME = "a" * 100
_GLOBS = ["*a" * 20 + "b", "**/" + "*a" * 20 + "b", "x/" + "**/*a/" * 20 + "b", "*{a,aa}" * 6 + "b"]


@pytest.mark.parametrize("glob", _GLOBS)
def test_many_stars_are_matched_at_once(tmp_path, glob):
    (tmp_path / ".git").mkdir()
    deep = tmp_path / "x" / "/".join("a" * 40)
    deep.mkdir(parents=True)
    for folder in (tmp_path, deep):
        (folder / f"{_NAME}.py").touch()
    path = f"{tmp_path}/x{'/a' * 200}/{_NAME}"
    start = time.process_time()
    assert not excluder((Glob(glob, str(tmp_path)),))(path, _NAME)
    assert not Glob(glob, str(tmp_path)).matcher()(path)
    (tmp_path / ".gitignore").write_text(f"{glob}\nz{glob}/**\n")
    found = discover([str(tmp_path)], Config(tmp_path))
    assert [item.absolute.name for item in found] == [f"{_NAME}.py"] * 2
    assert time.process_time() - start < 0.3


def test_braces_that_stand_for_too_many_globs_are_refused(tmp_path):
    (tmp_path / "pyproject.toml").write_text(f"[tool.jaxresid]\nexclude = ['{'{a,b}' * 10}']\n")
    with pytest.raises(ConfigError, match=r"its braces stand for over 1,000 globs"):
        load(tmp_path, Options())
    assert regex_of("{a,b}" * 9).count("|") == 511
