"""Formats of lint results, on records made by hand: whole outputs or parsed ones, no jax.

`data/sarif-2.1.0.json` is the OASIS committee's schema of SARIF 2.1.0 (rtm.4), MIT, from the source
distribution of sarif-om 1.0.4 on PyPI; its `$comment` carries the licence.
"""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxresid.base.text.safe_text import lines, visible
from jaxresid.base.violations import Edit, Fix, Linted, Related, RuleInfo, Span, Violation
from jaxresid.render.lint import FORMATS, STATISTICS_FORMATS, render, statistics
from jaxresid.render.lint.excerpt import excerpt
from jaxresid.render.lint.explain import explain, rule_table
from jaxresid.render.lint.layout import painter, text_width
from tests.schemas import validate
from tests.where import DATA


@pytest.fixture(autouse=True)
def no_addresses(monkeypatch):
    """The expected outputs are those of a project that is not published."""
    monkeypatch.setattr("jaxresid.base.urls.DOCUMENTATION", None)


ROOT = Path("/repo")
LINES = (
    "import jax",
    "",
    "def loss(w, x):",
    '\t名 = "😀"; y = jax.checkpoint(layer)(w, x)',
    "    return jax.checkpoint(",
    "        step,",
    "        1,",
    "        2,",
    "    )(w)",
    "",
)
USELESS = Violation(
    "JXR101",
    "checkpointed-loss",
    "warning",
    "The checkpoint saves nothing: 100%, really",
    "src/my model.py",
    Span(4, 13, 4, 34),
    noqa_rows=(3, 4),
    why="What it recomputes was saved as well, so that the step only gets slower.",
    help="checkpoint the layers instead",
    fix=Fix("Remove the checkpoint", (Edit(Span(4, 13, 4, 34), "layer"),), "safe"),
    related=(Related("differentiated here", "src/train.py", Span(9, 0, 9, 4)),),
    measured={"saved_bytes": 0, "share": float("nan"), "shapes": ((2, 3),)},
)
LOOP = Violation(
    "JXR201",
    "checkpoint-in-loop",
    "error",
    "Bad",
    "src/my model.py",
    Span(5, 11, 9, 5),
    noqa_rows=(5, 6, 7, 8, 9),
    fix=Fix(
        "Move the checkpoint",
        (Edit(Span(9, 5, 9, 8), "!"), Edit(Span(5, 11, 5, 26), "(")),
        "unsafe",
    ),
)
HINT = Violation("JXR301", "hint", "info", "Hm", "nb.ipynb", Span(1, 5, 1, 7), cell=3)
HINT = dataclasses.replace(HINT, fix=Fix("Go", (Edit(Span(1, 5, 1, 7), ""),), "unsafe"))
BROKEN = Violation(
    "invalid-syntax", "invalid-syntax", "error", "Expected )", "bad.py", Span(1, 0, 1, 0)
)
RESULTS = [
    Linted("src/my model.py", (USELESS, LOOP), {None: LINES}),
    Linted("ok.py", ()),
    Linted("nb.ipynb", (HINT,), {3: ("'😀', xy",)}),
    Linted("bad.py", (BROKEN,)),
]
ORDER = ["bad.py", "nb.ipynb", "src/my model.py", "src/my model.py"]
RULE = RuleInfo(
    "JXR101",
    "checkpointed-loss",
    "warning",
    "A checkpoint around the whole loss saves nothing.",
    {"What it does": "Finds one around\nthe loss.", "Use instead": "- layers\n- a policy"},
    "safe",
    True,
    "0.2.0",
    ">=0.7",
    False,
    ("x = 1\ny = jax.checkpoint(loss)  # !\n",),
    ("y = loss\n",),
)
OFF = dataclasses.replace(
    RULE, code="JXR999", name="other", severity="info", fix=None, default=False, sections={}
)


def rendered(format, results=RESULTS, **options):
    return render(format, results, [OFF, RULE], ROOT, version="1.2.3", **options)


def one(format, violation, lines=(), **options):
    return rendered(format, [Linted(violation.path, (violation,), {None: lines})], **options)


SARIF = jsonschema.Draft4Validator(json.loads((DATA / "sarif-2.1.0.json").read_text()))


# People ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "said", "why"),
    [
        ("it saves nothing: peak stays. It costs", "it saves nothing", "peak stays. It costs"),
        ("3.50 GiB kept. They need not: widen", "3.50 GiB kept", "They need not: widen"),
        ("nothing more", "nothing more", ""),
    ],
)
def test_a_finding_of_a_trace_says_first_what_is_wrong(message, said, why):
    figures = {"on": "gpu:h100", "profile": "gpu", "jax": "0.12.0", "peak_nbytes": 17}
    v = dataclasses.replace(USELESS, message=message, why="", measured=figures)
    lines = one("text", v, width=80).splitlines()
    assert f" {said} (" in lines[0]
    assert ([f"why: {why}"] if why else []) == [line for line in lines if line.startswith("why")]
    assert "figures: estimated for gpu:h100, jax 0.12.0" in lines
    assert "measured" not in one("text", v)
    assert "17" not in one("text", v)  # the message has the figures that a reader needs
    by_xla = one("text", dataclasses.replace(v, measured={**figures, "by": "xla"}), width=80)
    assert "figures: XLA's for gpu:h100, jax 0.12.0" in by_xla
    on_cpu = one("text", dataclasses.replace(v, measured={**figures, "on": "cpu", "profile": None}))
    assert "figures: XLA's for cpu, jax 0.12.0" in on_cpu
    late = {**figures, "by": "estimate", "unconfirmed": "no time"}
    unconfirmed = one("text", dataclasses.replace(v, measured=late), width=120)
    assert "estimated for gpu:h100, jax 0.12.0; unconfirmed by XLA: no time" in unconfirmed


def test_text():
    assert (
        rendered("text", width=60)
        == """\
error: invalid-syntax: Expected )
 --> bad.py:1:1

info: JXR301 Hm (hint)
 --> nb.ipynb:cell 3:1:6
  |
1 | '😀', xy
  |       ^^
  |
fix: Go (unsafe: --unsafe-fixes)

warning: JXR101 [*] The checkpoint saves nothing: 100%, really (checkpointed-loss)
 --> src/my model.py:4:14
  |
3 | def loss(w, x):
4 |     名 = "😀"; y = jax.checkpoint(layer)(w, x)
  |                   ^^^^^^^^^^^^^^^^^^^^^
5 |     return jax.checkpoint(
  |
why: What it recomputes was saved as well, so that the step
     only gets slower.
help: checkpoint the layers instead
note: src/train.py:9:1: differentiated here
fix: Remove the checkpoint (safe)

error: JXR201 Bad (checkpoint-in-loop)
  --> src/my model.py:5:12
   |
 4 |     名 = "😀"; y = jax.checkpoint(layer)(w, x)
 5 |     return jax.checkpoint(
   |            ^^^^^^^^^^^^^^^
...
 9 |     )(w)
   |     ^
   |
fix: Move the checkpoint (unsafe: --unsafe-fixes)

Found 4 findings (2 errors, 1 warning, 1 info).
[*] 1 fixable with --fix (2 more with --unsafe-fixes).
"""
    )


def test_concise():
    assert (
        rendered("concise")
        == """\
bad.py:1:1: invalid-syntax: Expected )
nb.ipynb:cell 3:1:6: JXR301 Hm
src/my model.py:4:14: JXR101 [*] The checkpoint saves nothing: 100%, really
src/my model.py:5:12: JXR201 Bad
Found 4 findings (2 errors, 1 warning, 1 info).
[*] 1 fixable with --fix (2 more with --unsafe-fixes).
"""
    )


def test_unsafe_fixes_count_where_asked_for():
    shown = rendered("concise", unsafe_fixes=True)
    assert "5:12: JXR201 [*] Bad" in shown
    assert shown.endswith("\n[*] 3 fixable with --fix.\n")
    assert one("concise", LOOP).endswith("\n1 fixable with --fix --unsafe-fixes.\n")
    assert one("concise", BROKEN).endswith("Found 1 finding (1 error).\n")


def test_what_was_fixed_is_said():
    assert rendered("text", [], fixed=1) == "Fixed 1 finding.\nAll checks passed!\n"
    assert "\nFixed 2 findings.\nFound 4 " in rendered("concise", fixed=2)


def test_colour_changes_nothing_else():
    for format in ("text", "concise"):
        colored = rendered(format, color=True)
        assert "\x1b[1;31m" in colored
        assert re.sub(r"\x1b\[[\d;]*m", "", colored) == rendered(format)


def test_people_see_no_control_characters():
    """Source must not write to the terminal, nor show in another order than it runs."""
    evil = dataclasses.replace(
        BROKEN, message="a\x1b[2Jb\nc", path="x\x1by.py", why="\x07", span=Span(1, 4, 1, 5)
    )
    for format in ("text", "concise"):
        shown = one(format, evil, ("a\x1b\u202e x",))
        assert not set(shown) & {"\x1b", "\x07", "\u202e"}
        assert "a␛[2Jb c" in shown
    assert "1 | a␛\ufffd x\n  |     ^\n" in one("text", evil, ("a\x1b\u202e x",))


def excerpt_of(lines, span, width=80):
    return "\n".join(excerpt(lines, span, width, painter(False), "error"))


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (Span(1, 4, 1, 4), "  |\n1 | abcd\n  |     ^\n2 |   ef\n  |"),
        (Span(1, 2, 2, 4), "  |\n1 | abcd\n  |   ^^\n2 |   ef\n  |   ^^\n3 | g\n  |"),
        (Span(1, 2, 2, 0), "  |\n1 | abcd\n  |   ^^\n2 |   ef\n  |"),
        (Span(1, 0, 3, 1), "  |\n1 | abcd\n  | ^^^^\n2 |   ef\n  |   ^^\n3 | g\n  | ^\n  |"),
        (Span(3, 0, 9, 1), "  |\n2 |   ef\n3 | g\n  | ^\n  |"),
        (Span(4, 0, 4, 1), ""),
    ],
)
def test_excerpt(span, expected):
    assert excerpt_of(("abcd", "  ef  ", "g"), span) == expected


def test_long_lines_are_cut_around_the_span():
    line = "a" * 50 + "BAD" + "c" * 50
    shown = excerpt_of((line, "x" * 200), Span(1, 50, 1, 53), 34).splitlines()
    assert shown[1:3] == [f"1 | …{'a' * 12}BAD{'c' * 13}…", f"  | {'':13}^^^"]
    assert shown[3] == f"2 | …{'x' * 28}…"
    assert excerpt_of((line,), Span(1, 0, 1, 3), 34).splitlines()[1] == f"1 | {'a' * 29}…"
    assert excerpt_of((line,), Span(1, 26, 1, 29), 34).splitlines()[1] == f"1 | {'a' * 29}…"
    assert excerpt_of((line,), Span(1, 100, 1, 103), 34).splitlines()[1] == f"1 | …{'c' * 29}"
    long = one("text", dataclasses.replace(LOOP, span=Span(1, 0, 1, 1)), (line,), width=34)
    assert f"\n1 | {'a' * 29}…\n" in long


def test_tabs_and_wide_characters_take_their_columns():
    assert text_width("a名ﾊe\u0301😀") == 7
    assert excerpt_of(("ab\tc名d",), Span(1, 5, 1, 6)).splitlines()[1:3] == [
        "1 | ab  c名d",
        "  |        ^",
    ]


CODE = st.text(st.sampled_from("ab (\t名é😀\u0301ﾊ"), max_size=60)


@given(CODE, CODE, CODE, st.integers(0, 90))
def test_carets_stand_under_the_span(before, inside, after, width):
    """However the line is cut: what is above the carets is the start of the span."""
    inside = f"[{inside}]"
    line = before + inside + after
    span = Span(1, len(before), 1, len(before) + len(inside))
    _, source, carets, _ = excerpt_of((line,), span, width).splitlines()
    room = max(20, width - 4)
    assert text_width(source) - 4 <= room
    start = carets.index("^")
    at = 0
    for char in source:
        if at == start and char_is_shown(char):
            assert char == "["
            break
        at += text_width(char)
    else:
        pytest.fail("the span is cut away")
    assert len(carets) - 4 <= room


def char_is_shown(char):
    return text_width(char) > 0


# Machines ----------------------------------------------------------------------------------------


def test_json_keeps_the_schema():
    entries = json.loads(rendered("json"), parse_constant=pytest.fail)
    validate(entries, "lint")
    assert [e["filename"] for e in entries] == [f"/repo/{path}" for path in ORDER]
    broken, hint, useless, loop = entries
    assert broken["code"] == broken["name"] == "invalid-syntax"
    assert broken["noqa_row"] is None
    assert (hint["cell"], hint["location"]) == (3, {"row": 1, "column": 6})
    assert useless == {
        "cell": None,
        "code": "JXR101",
        "end_location": {"row": 4, "column": 35},
        "filename": "/repo/src/my model.py",
        "fix": {
            "applicability": "safe",
            "edits": [
                {
                    "content": "layer",
                    "end_location": {"row": 4, "column": 35},
                    "location": {"row": 4, "column": 14},
                }
            ],
            "message": "Remove the checkpoint",
        },
        "location": {"row": 4, "column": 14},
        "message": USELESS.message,
        "name": "checkpointed-loss",
        "noqa_row": 4,
        "severity": "warning",
        "url": None,
        "why": USELESS.why,
        "help": USELESS.help,
        "related": [
            {
                "cell": None,
                "end_location": {"row": 9, "column": 5},
                "filename": "/repo/src/train.py",
                "location": {"row": 9, "column": 1},
                "message": "differentiated here",
            }
        ],
        "measured": {"saved_bytes": 0, "share": None, "shapes": [[2, 3]]},
    }
    assert loop["severity"] == "error"


def test_findings_point_at_the_pages_of_their_rules(monkeypatch):
    monkeypatch.setattr("jaxresid.base.urls.DOCUMENTATION", "https://docs.example")
    page = "https://docs.example/reference/rules/checkpointed-loss.html"
    assert json.loads(one("json", USELESS))[0]["url"] == page
    assert (
        json.loads(one("sarif", USELESS))["runs"][0]["tool"]["driver"]["rules"][0]["helpUri"]
        == page
    )
    assert json.loads(one("rdjson", USELESS))["diagnostics"][0]["code"]["url"] == page
    (file, *_) = (f for f in json.loads(one("lsp", USELESS)) if f["diagnostics"])
    assert file["diagnostics"][0]["codeDescription"] == {"href": page}


def test_what_could_not_be_linted_has_no_page(monkeypatch):
    monkeypatch.setattr("jaxresid.base.urls.DOCUMENTATION", "https://docs.example")
    assert json.loads(rendered("json"))[0]["url"] is None


def test_json_lines_are_the_items_of_json():
    lines = rendered("json-lines").splitlines()
    assert [json.loads(line) for line in lines] == json.loads(rendered("json"))
    assert ", " not in lines[0]


def keys(value):
    """The keys at every depth, the lists' items merged."""
    if isinstance(value, dict):
        return {key: keys(item) for key, item in value.items()}
    return keys(value[0]) if isinstance(value, list) and value else None


def contains(ours, theirs):
    return theirs is None or all(k in ours and contains(ours[k], theirs[k]) for k in theirs)


@pytest.fixture(scope="module")
def ruff(tmp_path_factory):
    """A function (arguments) -> what a real ruff prints about a file with one fixable finding."""
    beside = Path(sys.executable).with_name("ruff")
    found = str(beside) if beside.exists() else shutil.which("ruff")
    if found is None:
        pytest.skip("ruff is not installed")
    folder = tmp_path_factory.mktemp("ruff")
    (folder / "demo.py").write_text("import os\n")

    def run(*arguments):
        command = [found, "check", "--isolated", "--no-cache", "--select=F401", "--exit-zero"]
        done = subprocess.run(
            [*command, *arguments, "demo.py"], cwd=folder, capture_output=True, check=True
        )
        return done.stdout.decode()

    return run


@pytest.mark.tools
def test_json_has_every_key_of_ruff(ruff):
    theirs = json.loads(ruff("--output-format=json"))
    assert contains(keys(json.loads(one("json", USELESS))), keys(theirs))
    types = {key: type(value) for key, value in theirs[0].items() if key != "url"}
    ours = json.loads(one("json", USELESS))[0]
    assert {key: type(ours[key]) for key in types} == types


@pytest.mark.tools
def test_statistics_have_the_keys_of_ruff(ruff):
    theirs = json.loads(ruff("--output-format=json", "--statistics"))
    ours = json.loads(statistics(RESULTS, [RULE], "json"))
    assert keys(ours) == keys(theirs)
    assert [type(v) for v in ours[0].values()] == [type(v) for v in theirs[0].values()]


@pytest.mark.tools
def test_concise_has_the_shape_of_ruff(ruff):
    shape = re.compile(r"^(.+?):(\d+):(\d+): ([A-Z]+\d+)( \[\*\])? (.*)$")
    assert shape.match(ruff("--output-format=concise").splitlines()[0])
    assert shape.match(one("concise", USELESS).splitlines()[0]).group(1, 2, 3, 4, 5) == (
        *("src/my model.py", "4", "14", "JXR101"),
        " [*]",
    )


def sarif(results=RESULTS):
    log = json.loads(rendered("sarif", results), parse_constant=pytest.fail)
    SARIF.validate(log)
    return log["runs"][0]


def test_sarif():
    run = sarif()
    assert run["columnKind"] == "unicodeCodePoints"
    assert run["originalUriBaseIds"] == {"%SRCROOT%": {"uri": "file:///repo/"}}
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("jaxresid", "1.2.3")
    ids = [rule["id"] for rule in driver["rules"]]
    assert ids == ["JXR101", "JXR201", "JXR301", "invalid-syntax"]
    assert driver["rules"][0]["shortDescription"]["text"] == RULE.summary
    assert driver["rules"][0]["fullDescription"]["text"] == "Finds one around\nthe loss."
    assert driver["rules"][0]["defaultConfiguration"] == {"enabled": True, "level": "warning"}
    broken, _, useless, loop = run["results"]
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
    assert [r["level"] for r in run["results"]] == ["error", "note", "warning", "error"]
    assert useless["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "src/my%20model.py", "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": 4, "startColumn": 14, "endLine": 4, "endColumn": 35},
            }
        }
    ]
    assert useless["message"]["text"].splitlines() == [
        USELESS.message,
        USELESS.why,
        "help: checkpoint the layers instead",
    ]
    (related,) = useless["relatedLocations"]
    assert related["message"]["text"] == "differentiated here"
    assert related["physicalLocation"]["artifactLocation"]["uri"] == "src/train.py"
    assert useless["properties"]["measured"]["saved_bytes"] == 0
    (fix,) = useless["fixes"]
    assert fix["description"]["text"] == "Remove the checkpoint"
    (change,) = fix["artifactChanges"]
    assert (
        change["artifactLocation"]
        == useless["locations"][0]["physicalLocation"]["artifactLocation"]
    )
    assert change["replacements"] == [
        {
            "deletedRegion": {"startLine": 4, "startColumn": 14, "endLine": 4, "endColumn": 35},
            "insertedContent": {"text": "layer"},
        }
    ]
    assert len(loop["fixes"][0]["artifactChanges"][0]["replacements"]) == 2
    assert broken["locations"][0]["physicalLocation"]["region"]["startLine"] == 1


def test_sarif_says_the_cell_and_offers_no_rows_of_it_as_the_files():
    hint = sarif()["results"][1]
    (location,) = hint["locations"]
    assert location["physicalLocation"]["region"] == {"startLine": 1}
    assert location["logicalLocations"][0]["name"] == "cell 3"
    assert hint["message"]["text"] == "cell 3:1:6: Hm"
    assert hint["properties"]["cell"] == 3
    assert hint["properties"]["cellRegion"]["startColumn"] == 6
    assert "fixes" not in hint


def test_sarif_outside_the_root():
    artifact = []
    for path in ("/else/a b.py", "../c.py", "-"):
        result = sarif([Linted(path, (dataclasses.replace(LOOP, path=path),))])["results"][0]
        artifact.append(result["locations"][0]["physicalLocation"]["artifactLocation"])
    assert artifact == [
        {"uri": "file:///else/a%20b.py"},
        {"uri": "file:///c.py"},
        {"uri": "-", "uriBaseId": "%SRCROOT%"},
    ]


def fingerprints(lines, rows):
    found = [dataclasses.replace(LOOP, span=Span(row, 0, row, 1)) for row in rows]
    results = [Linted(LOOP.path, tuple(found), {None: lines})]
    marks = [r["partialFingerprints"]["primaryLocationLineHash"] for r in sarif(results)["results"]]
    codes = [issue["fingerprint"] for issue in json.loads(rendered("gitlab", results))]
    return marks, codes


def test_fingerprints_stay_when_lines_move():
    before = fingerprints(("a = 1", "b", "a = 1"), (1, 2, 3))
    after = fingerprints(("# new", "", "  a  = 1", "b", "\ta = 1"), (3, 4, 5))
    assert before == after
    marks, codes = before
    assert len(set(marks)) == len(set(codes)) == 3
    assert [mark.partition(":")[2] for mark in marks] == ["1", "1", "2"]


def test_gitlab_fingerprints_differ_between_files():
    results = [Linted(p, (dataclasses.replace(LOOP, path=p),)) for p in ("a.py", "b.py")]
    first, second = json.loads(rendered("gitlab", results))
    assert first["fingerprint"] != second["fingerprint"]


def test_github():
    assert rendered("github").splitlines() == [
        "::error title=jaxresid (invalid-syntax),file=bad.py,line=1,col=1,endLine=1,endColumn=1"
        "::bad.py:1:1: invalid-syntax: Expected )",
        "::notice title=jaxresid (JXR301),file=nb.ipynb,line=1::nb.ipynb:cell 3:1:6: JXR301 Hm",
        "::warning title=jaxresid (JXR101),file=src/my model.py,line=4,col=14,endLine=4,"
        "endColumn=35::src/my model.py:4:14: JXR101 The checkpoint saves nothing: 100%25, really"
        "%0A  What it recomputes was saved as well, so that the step only gets slower."
        "%0A  help: checkpoint the layers instead",
        "::error title=jaxresid (JXR201),file=src/my model.py,line=5,endLine=9"
        "::src/my model.py:5:12: JXR201 Bad",
    ]


AWKWARD = st.text(st.sampled_from("a%25:0D,\r\n=; é"), min_size=1, max_size=20)


def unescaped(text, *characters):
    return re.sub(
        "|".join(f"%{ord(c):02X}" for c in characters), lambda m: chr(int(m.group()[1:], 16)), text
    )


@given(AWKWARD, AWKWARD)
def test_github_escapes_once(message, name):
    line = one("github", dataclasses.replace(LOOP, message=message, path=f"d/{name}"))
    assert line.count("\n") == 1
    properties, _, data = line.removesuffix("\n").removeprefix("::error ").partition("::")
    values = dict(item.split("=", 1) for item in properties.split(","))
    assert ":" not in values["file"]
    # GitHub finds the file by its name, as far as that can be written.
    assert unescaped(values["file"], *"%\r\n:,") == f"d/{name}"
    assert unescaped(data, *"%\r\n") == f"d/{visible(name)}:5:12: JXR201 {message}"


def test_gitlab():
    issues = json.loads(rendered("gitlab"))
    fingerprint = issues[2].pop("fingerprint")
    assert re.fullmatch("[0-9a-f]{32}", fingerprint)
    assert issues[2] == {
        "description": f"JXR101: {USELESS.message}",
        "check_name": "JXR101",
        "severity": "minor",
        "location": {"path": "src/my model.py", "lines": {"begin": 4, "end": 4}},
    }
    assert [i["severity"] for i in issues] == ["major", "info", "minor", "major"]
    assert issues[1]["description"] == "JXR301: cell 3:1:6: Hm"
    assert issues[3]["location"]["lines"] == {"begin": 5, "end": 9}
    (ends_above,) = json.loads(one("gitlab", dataclasses.replace(LOOP, span=Span(5, 0, 7, 0))))
    assert ends_above["location"]["lines"] == {"begin": 5, "end": 6}


def test_junit():
    top = ET.fromstring(rendered("junit"))
    assert top.attrib == {
        "name": "jaxresid",
        "tests": "4",
        "failures": "3",
        "errors": "0",
        "skipped": "0",
    }
    assert [suite.get("name") for suite in top] == ["bad.py", "nb.ipynb", "src/my model.py"]
    assert [suite.get("failures") for suite in top] == ["1", "0", "2"]
    useless, _ = top[2]
    assert useless.get("name") == "JXR101 src/my model.py:4:14"
    assert useless.get("line") == "4"
    failure = useless.find("failure")
    assert failure.get("message") == USELESS.message
    assert failure.get("type") == "warning"
    assert failure.text.splitlines()[0] == f"src/my model.py:4:14: JXR101 {USELESS.message}"
    assert top[1][0].find("system-out").text == "nb.ipynb:cell 3:1:6: JXR301 Hm"


@given(st.text(max_size=30))
def test_junit_parses_whatever_the_message_is(message):
    top = ET.fromstring(one("junit", dataclasses.replace(LOOP, message=message)).encode())
    shown = top[0][0].find("failure").get("message")
    kept = [c for c in lines(message) if c.isprintable() and c not in "\ufffe\uffff"]
    assert [c for c in shown if c.isprintable()] == kept


def test_rdjson():
    report = json.loads(rendered("rdjson"))
    assert report["source"] == {"name": "jaxresid"}
    broken, hint, useless, loop = report["diagnostics"]
    assert [d["severity"] for d in report["diagnostics"]] == ["ERROR", "INFO", "WARNING", "ERROR"]
    assert useless["code"] == {"value": "JXR101"}
    where = {"start": {"line": 4, "column": 19}, "end": {"line": 4, "column": 40}}
    assert useless["location"] == {"path": "src/my model.py", "range": where}
    assert useless["suggestions"] == [{"range": where, "text": "layer"}]
    assert useless["related_locations"][0]["location"]["path"] == "src/train.py"
    assert loop["suggestions"] == [  # one, as edits are made all or none
        {
            "range": {"start": {"line": 5, "column": 12}, "end": {"line": 9, "column": 9}},
            "text": "(\n        step,\n        1,\n        2,\n    )!",
        }
    ]
    assert hint == {
        "message": "cell 3:1:6: Hm",
        "location": {"path": "nb.ipynb"},
        "severity": "INFO",
        "code": {"value": "JXR301"},
    }
    assert broken["location"]["range"]["start"] == {"line": 1, "column": 1}
    assert "suggestions" not in json.loads(one("rdjson", LOOP))["diagnostics"][0]


def test_lsp():
    files = json.loads(rendered("lsp"))
    assert [file["uri"] for file in files] == [
        "file:///repo/bad.py",
        "file:///repo/nb.ipynb",
        "file:///repo/ok.py",
        "file:///repo/src/my%20model.py",
    ]
    (broken,), (hint,), clean, (useless, loop) = (file["diagnostics"] for file in files)
    where = {"start": {"line": 3, "character": 14}, "end": {"line": 3, "character": 35}}
    assert useless == {
        "range": where,
        "severity": 2,
        "code": "JXR101",
        "source": "jaxresid",
        "message": f"{USELESS.message}\n{USELESS.why}\nhelp: {USELESS.help}",
        "tags": [1],
        "relatedInformation": [
            {
                "location": {
                    "uri": "file:///repo/src/train.py",
                    "range": {
                        "start": {"line": 8, "character": 0},
                        "end": {"line": 8, "character": 4},
                    },
                },
                "message": "differentiated here",
            }
        ],
        "data": {
            "measured": {"saved_bytes": 0, "share": None, "shapes": [[2, 3]]},
            "title": "Remove the checkpoint",
            "edits": [{"range": where, "newText": "layer"}],
            "applicability": "safe",
            "is_preferred": True,
        },
    }
    assert clean == []
    assert (broken["severity"], hint["severity"], loop["severity"]) == (1, 3, 1)
    assert "data" not in broken
    assert "tags" not in loop
    assert loop["data"]["is_preferred"] is False
    assert hint["data"]["cell"] == 3
    assert hint["range"]["start"] == {"line": 0, "character": 6}


def test_unnamed_standard_input():
    stdin = dataclasses.replace(LOOP, path="-")
    assert one("concise", stdin).startswith("-:5:12: ")
    assert json.loads(one("json", stdin))[0]["filename"] == "-"
    assert json.loads(one("lsp", stdin))[0]["uri"] == "untitled:-"


# All of them -------------------------------------------------------------------------------------


SOURCE = st.text(st.sampled_from("ab \t名é😀\u0301𝒳"), min_size=1, max_size=20)


@given(SOURCE, st.data())
def test_column_units(line, data):
    column = data.draw(st.integers(0, len(line)))
    violation = dataclasses.replace(LOOP, span=Span(1, column, 1, len(line)), fix=None)
    before = line[:column]

    def first(format):
        return json.loads(one(format, violation, (line,)))

    assert first("json")[0]["location"]["column"] == column + 1
    assert first("rdjson")["diagnostics"][0]["location"]["range"]["start"] == {
        "line": 1,
        "column": len(before.encode()) + 1,
    }
    place = first("lsp")[0]["diagnostics"][0]["range"]
    assert place["start"] == {"line": 0, "character": len(before.encode("utf-16-le")) // 2}
    assert place["end"] == {"line": 0, "character": len(line.encode("utf-16-le")) // 2}


def test_columns_of_unknown_lines_are_code_points():
    lsp = json.loads(one("lsp", LOOP))[0]["diagnostics"][0]
    assert lsp["range"]["start"] == {"line": 4, "character": 11}
    rdjson = json.loads(one("rdjson", LOOP))["diagnostics"][0]
    assert rdjson["location"]["range"]["end"] == {"line": 9, "column": 6}


@settings(max_examples=10)
@given(st.permutations(RESULTS))
def test_the_order_of_the_results_does_not_matter(results):
    for format in FORMATS:
        assert rendered(format, results) == rendered(format)


def test_findings_of_a_file_are_sorted():
    results = [Linted(LOOP.path, (LOOP, USELESS), {None: LINES}), *RESULTS[1:]]
    for format in FORMATS:
        assert rendered(format, results) == rendered(format)


EMPTY = {
    "text": "All checks passed!\n",
    "concise": "All checks passed!\n",
    "json": "[]\n",
    "json-lines": "",
    "github": "",
    "gitlab": "[]\n",
    "lsp": "[]\n",
}


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_found(format):
    shown = rendered(format, [])
    if format == "sarif":
        assert sarif([])["results"] == []
    elif format == "junit":
        top = ET.fromstring(shown)
        assert (top.get("tests"), top.get("failures")) == ("1", "0")
        assert [case.tag for case in top.iter("testcase")] == ["testcase"]
    elif format == "rdjson":
        assert json.loads(shown)["diagnostics"] == []
    else:
        assert shown == EMPTY[format]


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_can_be_encoded_and_ends_in_one_newline(format):
    """Names that are no UTF-8 reach Python as lone surrogates."""
    odd = dataclasses.replace(USELESS, path="odd\udcff.py", message="\ud800")
    shown = one(format, odd, LINES)
    assert shown.encode()
    assert shown.endswith("\n")
    assert not shown.endswith("\n\n")


@pytest.mark.parametrize("path", ["a.py", "./a.py", "/repo/a.py", "b/../a.py"])
def test_paths_are_shown_from_the_root(path):
    violation = dataclasses.replace(LOOP, path=path)
    assert one("concise", violation).startswith("a.py:5:12: ")
    assert json.loads(one("json", violation))[0]["filename"] == "/repo/a.py"
    uri = json.loads(one("lsp", violation))[0]["uri"]
    assert unquote(urlsplit(uri).path) == "/repo/a.py"


def test_unknown_formats_are_refused():
    with pytest.raises(ValueError, match="format must be one of text, concise, json, "):
        rendered("yaml")
    with pytest.raises(ValueError, match="not 'sarif'"):
        statistics(RESULTS, [RULE], "sarif")
    with pytest.raises(ValueError, match="text or json"):
        explain(RULE, "html")
    with pytest.raises(ValueError, match="text or json"):
        rule_table([RULE], "html")


def test_formats_import_nothing_that_takes_time():
    """Each in a fresh interpreter's terms: what importing the renderers adds to `sys.modules`."""
    code = (
        "import sys; import jaxresid.base.violations\n"
        "from pathlib import Path\n"
        "from jaxresid.render.lint import FORMATS, render\n"
        "[render(f, [], [], Path('/'), version='') for f in FORMATS]\n"
        "import jaxresid.render.lint.explain, jaxresid.render.lint.counts\n"
        "print(*{'jax', 'libcst', 'rich', 'click', 'asyncio'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# Statistics and rules ----------------------------------------------------------------------------


def test_statistics():
    again = dataclasses.replace(LOOP, span=Span(6, 0, 6, 1), fix=USELESS.fix)
    results = [*RESULTS, Linted("z.py", (dataclasses.replace(again, path="z.py"),))]
    text = """\
2  JXR201          [-] checkpoint-in-loop
1  JXR101          [*] checkpointed-loss
1  JXR301          [ ] hint
1  invalid-syntax  [ ] invalid-syntax
"""
    assert statistics(results, [RULE], "text") == statistics(results, [RULE], "concise") == text
    assert "[*] checkpoint-in-loop" in statistics(results, [RULE], "text", unsafe_fixes=True)
    assert json.loads(statistics(results, [RULE], "json"))[0] == {
        "code": "JXR201",
        "name": "checkpoint-in-loop",
        "count": 2,
        "fixable": False,
        "fixable_count": 1,
    }
    assert [statistics([], [], format) for format in STATISTICS_FORMATS] == ["", "", "[]\n"]


def test_explain():
    assert (
        explain(RULE, "text", width=40)
        == """\
JXR101 checkpointed-loss

A checkpoint around the whole loss saves
nothing.

severity: warning
default:  on
fix:      sometimes, safe
since:    jaxresid 0.2.0
jax:      >=0.7
needs:    one file

What it does
Finds one around the loss.

Use instead
- layers
- a policy

Bad
    x = 1
    y = jax.checkpoint(loss)  # <-- JXR101

Good
    y = loss
"""
    )
    off = explain(OFF, "text")
    assert "default:  off; --extend-select JXR999 turns it on\nfix:      none\n" in off
    assert "\x1b[1m" in explain(RULE, "text", color=True)


def test_explain_json():
    value = json.loads(explain(RULE, "json"))
    assert value == {
        "name": "checkpointed-loss",
        "code": "JXR101",
        "linter": "jaxresid",
        "summary": RULE.summary,
        "fix": "safe",
        "fix_availability": "Sometimes",
        "explanation": "## What it does\nFinds one around\nthe loss.\n\n"
        "## Use instead\n- layers\n- a policy",
        "severity": "warning",
        "default": True,
        "since": "0.2.0",
        "jax": ">=0.7",
        "project": False,
        "examples": {"bad": ["x = 1\ny = jax.checkpoint(loss)\n"], "good": ["y = loss\n"]},
    }
    assert json.loads(rule_table([RULE, OFF], "json"))[0] == value


def test_rule_table():
    assert (
        rule_table([RULE, OFF], "text", width=80)
        == """\
code    name               severity  fix   default  summary
JXR101  checkpointed-loss  warning   safe  on       A checkpoint around the
                                                    whole loss saves nothing.
JXR999  other              info            off      A checkpoint around the
                                                    whole loss saves nothing.
"""
    )
    narrow = rule_table([RULE], "text", width=60).splitlines()
    assert narrow[2:] == [
        "JXR101  checkpointed-loss  warning   safe  on",
        "    A checkpoint around the whole loss saves nothing.",
    ]
    assert rule_table([], "text") == ""


def test_pictures_for_what_cannot_be_seen():
    assert visible("\t\x7f\x9b名") == "␉␡\ufffd名"
