"""The linter on whatever it is given: it never crashes, hangs, or moves text of others."""

import ast
import os
import random
import subprocess
import sys
import sysconfig
import tarfile
import time
import warnings
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxresid.linter.rules import all_rules
from jaxresid.linter.run import discover
from jaxresid.linter.run.engine import LintSettings, fix_bytes, lint_bytes
from jaxresid.linter.run.files import LintRun
from jaxresid.linter.text import prefilter as funnel
from jaxresid.linter.text.source import SourceText
from jaxresid.settings.config import Options, combine

RULES = all_rules()
KNOWN = {r.code: r.name for r in RULES}
OPTIONAL = frozenset(r.code for r in RULES if not r.is_default())
ALL = LintSettings(RULES, KNOWN, OPTIONAL, unsafe_fixes=True)
DEFAULT = LintSettings(tuple(r for r in RULES if r.is_default()), KNOWN, OPTIONAL)
HEADER = """\
import functools
import jax
from jax import lax, checkpoint as ck
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
def f(x):
    return jnp.sin(x)
"""
RELAXED = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def tree_of(raw):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(raw)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def unfiltered(raw, settings=ALL):
    """As `lint_bytes`, but no file is dropped before the rules have seen it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(funnel, "mentions", lambda *_: True)
        patch.setattr(funnel, "confirms", lambda *_: True)
        return lint_bytes(raw, "m.py", settings).violations


def check(raw):
    """What holds of every file; gives its findings."""
    found = unfiltered(raw)
    broken = [v for v in found if v.code == "invalid-syntax"]
    if broken:
        assert len(found) == 1
        return found
    lines = SourceText.decode(raw, "m.py").lines
    for v in found:
        span = v.span
        assert 1 <= span.row <= span.end_row <= len(lines)
        assert 0 <= span.column <= len(lines[span.row - 1])
        assert 0 <= span.end_column <= len(lines[span.end_row - 1])
        assert (span.row, span.column) < (span.end_row, span.end_column)
    assert set(lint_bytes(raw, "m.py", ALL).violations) == set(found)
    assert set(lint_bytes(raw, "m.py", DEFAULT).violations) == set(unfiltered(raw, DEFAULT))
    if any(v.fix for v in found):
        check_fixes(raw, found)
    return found


def check_fixes(raw, found):
    fixed = fix_bytes(raw, "m.py", ALL)
    if tree_of(raw) is not None:
        assert tree_of(fixed.raw) is not None
    again = fix_bytes(fixed.raw, "m.py", ALL)
    assert again.raw == fixed.raw and again.fixes == ()
    for violation in found:
        if violation.fix is not None:
            check_one_fix(raw, violation.fix)


def check_one_fix(raw, fix):
    """The text outside a fix's edits stays, and so does each statement that they do not touch."""
    source = SourceText.decode(raw, "m.py")
    after = source.edited(fix.edits)
    ranges = sorted((source.start(e.span), source.end(e.span)) for e in fix.edits)
    at = 0
    for start, end in [*ranges, (len(source.text),) * 2]:
        kept = source.text[at:start]
        position = after.find(kept)
        assert position >= 0
        at = end
    before, changed = tree_of(raw), tree_of(source.encode(after))
    if before is None or changed is None:
        return
    touched = {r for e in fix.edits for r in range(e.span.row, e.span.end_row + 1)}
    dumps = {ast.dump(s) for s in changed.body}
    for statement in before.body:
        decorators = [d.lineno for d in getattr(statement, "decorator_list", [])]
        rows = range(min([statement.lineno, *decorators]), statement.end_lineno + 1)
        if touched.isdisjoint(rows):
            assert ast.dump(statement) in dumps


# -- generated programs --------------------------------------------------------------------------

NAMES = st.sampled_from(["f", "g", "h", "self.f", "x", "None", "lambda x: x", "jax", "undefined"])
POLICY = st.sampled_from(
    """
    jax.checkpoint_policies.dots_saveable
    jax.checkpoint_policies.nothing_saveable()
    jax.checkpoint_policies.save_only_these_names
    jax.checkpoint_policies.save_only_these_names('a','b')
    jax.checkpoint_policies.save_only_these_names(['a'])
    jax.checkpoint_policies.save_only_these_names(*names)
    jax.checkpoint_policies.save_anything_except_these_names()
    jax.checkpoint_policies.everything_saveable
    jax.checkpoint_policies.no_such_policy(1)
    'dots'
    None
    """.split("\n")[1:-1]
).map(str.strip)


def wrapped(inner):
    call = st.sampled_from(
        """
        jax.checkpoint({0})
        ck({0}, prevent_cse=False)
        jax.remat({0}, static_argnums=(1, -1))
        functools.partial(ck, policy={1})({0})
        functools.partial({0}, {0})
        ck(policy={1})
        jax.checkpoint({0}, policy={1})
        jax.checkpoint(*{0}, **{0})
        jax.checkpoint()
        jax.grad({0})
        jax.value_and_grad({0}, has_aux=True)(x)
        jax.vjp({0}, x)[1]
        jax.jit({0})
        jax.vmap({0})(x)
        lax.scan({0}, x, x)
        lax.scan({0}, x, x, unroll=True)
        lax.fori_loop(0, 3, {0}, x)
        lax.cond(x, {0}, {0}, x)
        checkpoint_name({0}, 'a')
        checkpoint_name(jnp.sin({0}), x)
        checkpoint_name('a')
        {0}({0})
        [{0}, {0}][0]
        ({0} if x else {0})
        (h := {0})
        (lambda x, g={0}: g(x))
        [{0} for g in [{0}]]
        {{'k': {0}, **{0}}}
        jax.custom_vjp({0})
        f'{{{0}!r:>{{x}}}}'
        -{0}
        """.split("\n")[1:-1]
    ).map(str.strip)
    return st.builds(lambda c, a, p: c.format(f"({a})", p), call, inner, POLICY)


EXPRESSIONS = st.recursive(NAMES, wrapped, max_leaves=6)
DECORATORS = st.lists(
    st.sampled_from(
        """
        jax.checkpoint|ck|jax.jit|jax.grad|jax.custom_vjp|jax.checkpoint()|undefined
        functools.partial(jax.checkpoint, prevent_cse=False)|staticmethod|ck(policy=1)
        """.replace("\n", "|").split("|")
    )
    .map(str.strip)
    .filter(bool),
    max_size=3,
)


def indented(body):
    return "\n".join("    " + line for line in body.split("\n"))


def compound(inner):
    body = st.lists(inner, min_size=1, max_size=4).map("\n".join)
    return st.one_of(
        st.builds(
            lambda decorators, name, b: (
                "".join(f"@{d}\n" for d in decorators)
                + f"def {name}(x, g=f, *args, **kwargs):\n{indented(b)}"
            ),
            DECORATORS,
            st.sampled_from("fgh"),
            body,
        ),
        st.builds(lambda e, b: f"class A({e}):\n    f = ck(f)\n{indented(b)}", EXPRESSIONS, body),
        st.builds(
            lambda head, e, b, c: (
                f"{head.format(e)}\n{indented(b)}\n"
                + (f"else:\n{indented(c)}" if not head.startswith("with") else "")
            ),
            st.sampled_from(["if {}:", "for g in {}:", "while {}:", "with {} as h:"]),
            EXPRESSIONS,
            body,
            body,
        ),
        st.builds(lambda b: f"try:\n{indented(b)}\nexcept E as f:\n    pass", body),
    )


SIMPLE = st.one_of(
    st.builds(
        lambda t, e: t.format(e),
        st.sampled_from(
            "f = {}|g = h = {}|self.f = {}|{}|f, g = {}, f|(f), *g = {}|h: object = {}|f += {}"
            "|assert {}|del f; f = {}|x = {} # noqa|x = (  # why\n    {}\n)|f = {}; g = f"
            "|x = {} # jaxresid: ignore[JXR101]".split("|")
        ),
        EXPRESSIONS,
    ),
    st.sampled_from(["global f", "import jax as f", "from jax import *", "pass", "return f(x)"]),
)
PROGRAMS = st.lists(st.recursive(SIMPLE, compound, max_leaves=8), min_size=1, max_size=6).map(
    lambda parts: HEADER + "\n".join(parts) + "\n"
)


@pytest.mark.integration
@RELAXED
@given(PROGRAMS)
def test_generated_programs(program):
    check(program.encode())


@pytest.mark.integration
@RELAXED
@given(PROGRAMS, st.sampled_from(["\r\n", "\r", "\n\x0c"]), st.booleans())
def test_other_line_ends_and_marks(program, end, bom):
    check((b"\xef\xbb\xbf" if bom else b"") + ("# é\n" + program).replace("\n", end).encode())


@pytest.mark.integration
@RELAXED
@given(PROGRAMS, st.integers(0, 10**6), st.binary(max_size=4))
def test_cut_and_scrambled_text(program, at, junk):
    raw = program.encode()
    at %= len(raw)
    check(raw[:at])
    check(raw[:at] + junk + raw[at:])
    check(raw[:at] + raw[at + 1 :])


@pytest.mark.integration
def test_any_python():
    from_grammar = pytest.importorskip("hypothesmith").from_grammar

    @RELAXED
    @given(from_grammar())
    def run(text):
        check((HEADER + text).encode("utf-8", "surrogatepass"))

    run()


# -- deep and long -------------------------------------------------------------------------------

PATHOLOGICAL = {
    "brackets": "x = " + "(" * 5000 + "1" + ")" * 5000,
    "calls": "x = " + "jax.checkpoint(" * 90 + "f" + ")" * 90,
    "minus": "x = " + "-" * 5000 + "1",
    "sum": "@ck\ndef loss(x):\n return " + "+".join(["jnp.sin(x)"] * 3000) + "\njax.grad(loss)",
    "newer grammar and a long sum": "def g[T](x): pass\nx = " + "+".join(["a"] * 30_000),
    "elif": "if x: y = f\n" + "elif x: y = f\n" * 1500 + "jax.grad(ck(y))",
    "assignments": "h = f\n" * 10_000 + "jax.grad(ck(h))",
    "rebinding": "h = jax.checkpoint(h)\n" * 3000 + "jax.grad(h)(1.)",
    "conditional rebinding": "if x: h = jax.jit(h)\n" * 3000 + "jax.grad(ck(h))",
    "aliases": "h0 = f\n" + "".join(f"h{i + 1} = h{i}\n" for i in range(5000)) + "ck(h5000)",
    "recursion": "".join(f"def m{i}(x): return m{(i + 1) % 900}(x)\n" for i in range(900))
    + "jax.grad(ck(m0))",
    "callers": "def m0(x): return ck(f)(x)\n"
    + "".join(f"def m{i + 1}(x): return m{i}(x)\n" for i in range(900))
    + "jax.grad(m900)",
    "helpers": "".join(f"def h{i}(u): return h{i + 1}(u), h{i + 1}(u)\n" for i in range(40))
    + "h0(ck(f))",
    "lambdas": "x = " + "lambda x: " * 900 + "ck(f)(x)",
    "dict": "d = {" + ",".join(f"'{i}': f" for i in range(20_000)) + "}\nck(d['1'])",
    "wide line": "s = 'é';" + "z = ck(f);" * 3000,
}


@pytest.mark.integration
@pytest.mark.parametrize("text", PATHOLOGICAL.values(), ids=PATHOLOGICAL)
def test_deep_and_long_text_ends_soon(text):
    raw = f"{HEADER}{text}\n".encode()
    start = time.process_time()
    found = unfiltered(raw)
    assert time.process_time() - start < 8  # seconds; most take under one
    if tree_of(raw) is None:
        assert [v.code for v in found] == ["invalid-syntax"]
    else:
        assert "invalid-syntax" not in {v.code for v in found}


# -- awkward files -------------------------------------------------------------------------------


def lint_tree(root, monkeypatch, **options):
    monkeypatch.chdir(root)
    config = combine(Options(), Options(**options), root=root, cwd=root)
    return {r.path: r for r in LintRun(config).run(["."], jobs=1)}


BAD = HEADER + "jax.checkpoint(f)\n"


def test_awkward_files_do_not_hide_the_others(tmp_path, monkeypatch):
    text = BAD
    contents = {
        "latin.py": b"# \xe9\nimport jax\njax.checkpoint\n",
        "coding.py": b"# coding: no-such-codec\nimport jax\njax.checkpoint(f)\n",
        "nul.py": b"import jax\0\njax.checkpoint(f)\n",
        "cut.py": text.encode() + b"(",
        "bom.py": b"\xef\xbb\xbf" + text.encode(),
        "crlf.py": text.replace("\n", "\r\n").encode(),
        "cr.py": text.replace("\n", "\r").encode(),
        "feed.py": text.replace("\n", "\n\x0c").replace("\x0c    ", "    ").encode(),
        "long.py": text.encode() + b"#" + b"x" * 5_000_000,
        "empty.py": b"",
        "comments.py": b"# jax.checkpoint(f)\n# jax\n",
        "plain.py": text.encode(),
        "coded.py": b"# coding: latin-1\n# \xe9\n" + text.encode(),
    }
    for name, raw in contents.items():
        (tmp_path / name).write_bytes(raw)
    (tmp_path / "directory.py").mkdir()
    (tmp_path / "directory.py" / "inner.py").write_text(text)
    (tmp_path / "dangling.py").symlink_to("nowhere.py")
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "back").symlink_to(tmp_path, target_is_directory=True)
    found = lint_tree(tmp_path, monkeypatch, select=("JXR105",))
    codes = {path: {v.code for v in r.violations} for path, r in found.items()}
    for name in ("latin.py", "coding.py", "nul.py", "cut.py"):
        assert codes.pop(name) == {"invalid-syntax"}, name
        assert len(found[name].violations) == 1
    for name in ("dangling.py", "loop.py"):
        assert codes.pop(name) == {"unreadable"}, name
    good = {"bom", "crlf", "cr", "feed", "long", "plain", "coded", "directory.py/inner"}
    assert set(codes) == {f"{n}.py" for n in good}
    assert {frozenset(c) for c in codes.values()} == {frozenset({"JXR105"})}


@pytest.mark.parametrize(
    ("error", "reason"), [(PermissionError(13, "Permission denied"), "denied"), (None, "No such")]
)
def test_unreadable_and_vanishing_files(tmp_path, monkeypatch, error, reason):
    (tmp_path / "plain.py").write_text(BAD)
    (tmp_path / "gone.py").write_text(BAD)
    real = discover.discover

    def listed(*args):
        found = real(*args)
        if error is None:
            (tmp_path / "gone.py").unlink(missing_ok=True)
        return found

    opened = open

    def guarded(path, *args, **kwargs):
        if error is not None and os.path.basename(path) == "gone.py":
            raise error
        return opened(path, *args, **kwargs)

    monkeypatch.setattr("jaxresid.linter.run.files.discover", listed)
    monkeypatch.setattr("builtins.open", guarded)
    found = lint_tree(tmp_path, monkeypatch, select=("JXR105",))
    assert {p: {v.code for v in r.violations} for p, r in found.items()} == {
        "gone.py": {"unreadable"},
        "plain.py": {"JXR105"},
    }
    assert reason in found["gone.py"].violations[0].message


# -- real code -----------------------------------------------------------------------------------


def python_files(*roots):
    return sorted(p for root in roots for p in Path(root).rglob("*.py") if p.is_file())


def installed(name):
    package = Path(sysconfig.get_paths()["purelib"], name)
    if not package.is_dir():
        pytest.skip(f"{name} is not installed")
    return package


def check_files(files):
    for file in files:
        try:
            check(file.read_bytes())
        except Exception as e:
            raise AssertionError(f"{file}") from e


@pytest.mark.integration
def test_some_of_the_standard_library():
    files = [p for p in python_files(sysconfig.get_paths()["stdlib"]) if "-packages" not in str(p)]
    check_files(random.Random(0).sample(files, 60))


@pytest.mark.slow
def test_standard_library():
    files = python_files(sysconfig.get_paths()["stdlib"])
    check_files(p for p in files if "-packages" not in str(p))


@pytest.mark.slow
@pytest.mark.parametrize("package", ["jax", "flax", "equinox"])
def test_installed_packages(package):
    check_files(python_files(installed(package)))


PACKAGES = "numpyro==0.18.0 optax==0.2.5 blackjax==1.2.5 diffrax==0.7.0 brax==0.12.3".split()
PACKAGES.append("optimistix==0.0.10")


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_packages_without_checkpointing_have_no_findings(package, tmp_path, monkeypatch):
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(tmp_path)]
    done = subprocess.run(
        [*command, package], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot download {package}: {done.stderr.strip()[-200:]}")
    (archive,) = tmp_path.iterdir()
    tree = tmp_path / "tree"
    if archive.suffix == ".whl":
        zipfile.ZipFile(archive).extractall(tree)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(tree, filter="data")
    assert len(python_files(tree)) > 10
    found = lint_tree(tree, monkeypatch)
    serious = [v for r in found.values() for v in r.violations if v.severity != "info"]
    assert serious == []
