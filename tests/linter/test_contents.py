"""What a file's bytes tell of its imports and definitions, held against its tree."""

import ast
import time
from pathlib import Path

import pytest

from jaxresid.linter.resolve import contents
from jaxresid.linter.resolve.contents import Contents, FileWords, Question

_STATEMENTS = """
import a
import a.b as c, d
from a import b
from . import b
from ..a.b import (  # why
    c as d,
    e,
)
from a import b, \\
    c
from only_here \\
    import b
try: import a
except ImportError: from b import a
x = 1; import a; from c import d
if x:
    import a
important = reimport(a)  # import b is a comment
def imports(x): import a
"""


def _imported(tree):
    """Return what import statements bind, and the modules that they name."""
    nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
    words = {a.name.rpartition(".")[2] for n in nodes for a in n.names} - {"*"}
    named = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    named += [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    return words, {part for name in named for part in name.split(".")} - {""}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_import_is_found_by_its_text(newline):
    words = FileWords(_STATEMENTS.replace("\n", newline).encode())
    names, modules = _imported(ast.parse(_STATEMENTS))
    assert {word.encode() for word in names} <= words.imported.keys()
    assert {module.encode() for module in modules} <= words.modules
    assert b"important" not in words.modules | words.imported.keys()


def test_every_import_of_the_standard_library_is_found():
    for path in sorted(Path(ast.__file__).parent.glob("*.py"))[::8]:
        words = FileWords(path.read_bytes())
        names, modules = _imported(ast.parse(path.read_bytes()))
        assert {word.encode() for word in names} <= words.imported.keys(), path
        assert {module.encode() for module in modules} <= words.modules, path


@pytest.mark.parametrize(
    ("source", "defines"),
    [
        ("import jax\ndef remat(f):\n    return f\n", True),
        ("import jax\nclass remat:\n    pass\n", True),
        ("import jax\nclass remat(Base):\n    pass\n", True),
        ("import jax\n    def remat(f):\n        return f\n", False),
        ("from jax import remat\ndef remat(f):\n    return f\n", False),
        ("import jax\ndef remat(f):\n    return f\nremat = jax.remat\n", False),
        ("import jax\ndef remat_scan(f):\n    return f\n", False),
    ],
)
def test_what_a_module_certainly_defines(source, defines):
    assert FileWords(source.encode()).defines(b"remat") is defines


@pytest.mark.parametrize(
    ("source", "may"),
    [
        ("x = home.word", True),
        ("x = myhome.word", False),
        ("x = myhome.word(home.word)", True),
        ("x = _home.word + é.home.word", True),
        ("import home\nx = other.word", True),
        ("import home\nx = word", False),
    ],
)
def test_a_module_is_spelled_with_its_whole_name(source, may):
    words = FileWords(source.encode())
    for _ in range(2):  # the second time it is remembered
        assert words.could_answer(Question("word", "home")) is may
        assert words.could_answer(Question("word", "x")) is False


@pytest.mark.parametrize("few", [0, 100])
def test_answers_are_those_of_each_file_however_they_are_found(tmp_path, monkeypatch, few):
    monkeypatch.setattr(contents, "_FEW", few)
    texts = [
        f"from pkg import model{i}\nimport pkg.sub{i} as s{i}\nmodel{i}.loss(xmodel{i + 1}.loss)\n"
        f"pkg.model{i + 2}.loss\né{i}.loss\n"
        for i in range(8)
    ]
    files = {tmp_path / f"f{i}.py": text.encode() for i, text in enumerate(texts)}
    asked = Contents([*files], files)
    parents = [f"{name}{i}" for name in ("model", "sub", "xmodel", "s", "é") for i in range(12)]
    for question in [Question("loss", parent) for parent in parents]:
        each = [path for path, raw in files.items() if FileWords(raw).could_answer(question)]
        assert list(asked.answer(question)) == each, question


_LITERALS = [
    "x = 'qkv'",
    'x = "qkv" ""',
    'x = ("""qkv""", b"q")',
    "x = '\\\nqkv\\\n'",
    "x = f'{y}qkv'",
    "x = f'qkv{y}'",
    "x = f'{y:qkv}'",
    "x = f'{y!r:qkv}'",
    "x = f'{qkv}' + 'a qkv' + 'qkv a' # 'q'",
    "x = y['qkv']; qkv()",
]


@pytest.mark.parametrize("code", _LITERALS)
def test_a_file_may_quote_each_literal_of_it(code):
    literals = [n.value for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Constant)]
    words = FileWords(code.encode())
    for text in {"qkv", *(v for v in literals if isinstance(v, str) and v in code)}:
        assert words.may_quote(text) >= (text in literals), text


def test_a_word_of_code_is_no_literal():
    assert not FileWords(b"qkv = f(qkv, 'the qkv of x')  # qkv\n").may_quote("qkv")


@pytest.mark.parametrize(
    ("code", "is_in_code"),
    [
        ("f(remat)", True),
        ("'remat' # remat", False),
        ('"""\nremat(\'x\')\n""" + b"remat"', False),
        ("f'{remat}' + 'remat'", True),
        ("'remat' + remat", True),
        ("'it' 's' # 'remat", False),
    ],
)
def test_a_word_in_code(code, is_in_code):
    assert FileWords(code.encode()).is_in_code("remat") is is_in_code


def test_what_is_read_of_a_long_file_takes_no_time():
    start = time.process_time()
    banner = b"# It ends.\n" + b"#####.##\n" * 20_000
    assert FileWords(banner + b"z = x. # y\n w").attributes == {b"w", b"z"}
    assert not FileWords(b"import (\n" * 60_000).imported.keys() - {b"import"}
    assert FileWords(b"import a;" * 60_000).imported.keys() >= {b"a"}
    assert not FileWords(b"from\\\n" * 20_000 + b"; import").imported
    assert time.process_time() - start < 1
