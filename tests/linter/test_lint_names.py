"""What expressions refer to, and where values go: every spelling that real code has."""

import ast
import textwrap

import pytest

from jaxresid.linter.resolve.facts import Facts
from jaxresid.linter.resolve.project import Project, ProjectModule
from jaxresid.linter.text.source import SourceText
from jaxresid.linter.text.syntax import parse


def facts(code, **options):
    source = SourceText("module.py", textwrap.dedent(code))
    return Facts(source, parse(source), **options)


def sites(code, **options):
    return [(s.qualname, s.node.lineno) for s in facts(code, **options).sites]


SPELLINGS = {
    "import jax\njax.checkpoint(f)": "jax.checkpoint",
    "import jax\njax.remat(f)": "jax.remat",
    "import jax as j\nj.checkpoint(f)": "jax.checkpoint",
    "from jax import checkpoint\ncheckpoint(f)": "jax.checkpoint",
    "from jax import remat as ckpt\nckpt(f)": "jax.remat",
    "import jax.ad_checkpoint\njax.ad_checkpoint.checkpoint(f)": "jax.ad_checkpoint.checkpoint",
    "from jax import ad_checkpoint as adc\nadc.remat(f)": "jax.ad_checkpoint.remat",
    "from jax.ad_checkpoint import checkpoint\ncheckpoint(f)": "jax.ad_checkpoint.checkpoint",
    "import flax.linen as nn\nnn.remat(B)": "flax.linen.remat",
    "from flax import linen as nn\nnn.checkpoint(B)": "flax.linen.checkpoint",
    "from flax import linen\nlinen.remat_scan(B)": "flax.linen.remat_scan",
    "from flax import nnx as nn\nnn.remat(f)": "flax.nnx.remat",
    "from flax import nnx\nnnx.remat(f)": "flax.nnx.remat",
    "import flax\nflax.nnx.remat(f)": "flax.nnx.remat",
    "from flax.linen import partitioning as nnp\nnnp.remat(B)": "flax.linen.partitioning.remat",
    "from flax.linen import partitioning as p\nremat = p.remat\nremat(B)": (
        "flax.linen.partitioning.remat"
    ),
    "import haiku as hk\nhk.remat(f)": "haiku.remat",
    "import equinox as eqx\neqx.filter_checkpoint(f)": "equinox.filter_checkpoint",
    "from haliax.jax_utils import filter_checkpoint\nfilter_checkpoint(f)": (
        "haliax.jax_utils.filter_checkpoint"
    ),
    "import keras\nkeras.remat(f)": "keras.remat",
    "import jax, functools\nfunctools.partial(jax.checkpoint, policy=p)(f)": "jax.checkpoint",
    "import jax\nfrom functools import partial as p\nc = p(jax.remat, policy=q)\nc(f)": "jax.remat",
    "import jax\nc = jax.checkpoint if flag else jax.remat\nc(f)": "jax.checkpoint",
    "import jax\nc = wrap or jax.checkpoint\nc(f)": "jax.checkpoint",
    "import jax\ndef g(f, wrap=jax.checkpoint):\n    return wrap(f)": "jax.checkpoint",
    "import jax\n(c := jax.checkpoint)(f)": "jax.checkpoint",
    "import jax\nclass A:\n    def __init__(self):\n        self.wrap = jax.checkpoint\n"
    "    def run(self, f):\n        return self.wrap(f)": "jax.checkpoint",
    "import jax\nclass A:\n    wrap = jax.checkpoint\nA.wrap(f)": "jax.checkpoint",
    "try:\n    from jax import checkpoint\nexcept ImportError:\n    checkpoint = None\n"
    "checkpoint(f)": "jax.checkpoint",
    "import jax\ndef g(f):\n    from jax import checkpoint as c\n    return c(f)": "jax.checkpoint",
    "import jax\n@jax.checkpoint\ndef f(x): ...": "jax.checkpoint",
    "import jax\nfrom functools import partial\n@partial(jax.checkpoint, policy=p)\n"
    "def f(x): ...": "jax.checkpoint",
    "from flax import nnx\n@nnx.remat(policy=p)\ndef f(x): ...": "flax.nnx.remat",
    "import equinox as eqx\nclass A:\n    @eqx.filter_checkpoint\n    def f(x): ...": (
        "equinox.filter_checkpoint"
    ),
    "from flax import linen as nn\n@nn.remat\nclass B(nn.Module): ...": "flax.linen.remat",
    "import jax\njax.checkpoint(fun=f, policy=p)": "jax.checkpoint",
}


@pytest.mark.parametrize(("code", "qualname"), SPELLINGS.items())
def test_every_spelling_is_a_site(code, qualname):
    assert [q for q, _ in sites(code)] == [qualname]


@pytest.mark.parametrize(
    "code",
    [
        "import orbax.checkpoint as ocp\nocp.checkpoint(f)",
        "from torch.utils.checkpoint import checkpoint\ncheckpoint(f, x)",
        "import jax\ndef g(checkpoint, f):\n    return checkpoint(f)",
        "from jax import checkpoint\ncheckpoint = mine\ncheckpoint(f)",
        "from jax import checkpoint\ndef checkpoint(f): ...\ncheckpoint(f)",
        "from jax import checkpoint\ndef g(f):\n    checkpoint = save\n    return checkpoint(f)",
        "import jax\njax = fake\njax.checkpoint(f)",
        "import jax\nself.checkpoint(f)",
        "from jax import checkpoint\n[checkpoint(f) for checkpoint in savers]",
        "from jax import *\nremat(f)",
        "import jax\njax.checkpoint.save(f)",
        "import jax\n'jax.checkpoint(f)'\n# jax.checkpoint(f)",
        "import jax\njax.checkpoint(policy=p)",
    ],
)
def test_what_only_looks_like_one_is_none(code):
    assert sites(code) == []


def test_a_name_is_looked_up_where_it_stands():
    code = """
    import jax
    def f(x): ...
    def outer():
        jax = None
        def inner():
            return jax.checkpoint(f)
    class A:
        jax = None
        def method(self):
            return jax.checkpoint(f)
    """
    assert [line for _, line in sites(code)] == [11]


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        ("jax.checkpoint(f)(x)", ["call"]),
        ("g = jax.checkpoint(f)\ng(x)\ng(y)", ["call", "call"]),
        ("f = jax.checkpoint(f)\nf(x)", ["call"]),
        ("g = jax.jit(jax.checkpoint(f))\ng(x)", ["call"]),
        ("g = h = jax.checkpoint(f)\nh(x)", ["call"]),
        ("jax.lax.scan(jax.checkpoint(f), c, xs)", ["loop"]),
        ("jax.lax.fori_loop(0, 3, jax.checkpoint(f), c)", ["loop"]),
        ("jax.lax.while_loop(cond, jax.checkpoint(f), c)", ["loop"]),
        ("jax.lax.fori_loop(0, jax.checkpoint(f), g, c)", ["escapes"]),
        ("jax.lax.scan(f=jax.checkpoint(f), init=c, xs=xs)", ["loop"]),
        (
            "from functools import partial\npartial(jax.lax.scan, jax.checkpoint(f))(c, xs)",
            ["loop"],
        ),
        ("from flax import linen as nn\nnn.scan(nn.remat(f), length=3)", []),
        ("jax.grad(jax.checkpoint(f))", ["derivative"]),
        ("from functools import partial\njax.grad(partial(jax.checkpoint(f), 1))", ["derivative"]),
        ("jax.grad(jax.vmap(jax.checkpoint(f)))", ["derivative"]),
        ("jax.grad(fun=jax.checkpoint(f))", ["derivative"]),
        ("jax.grad(g, jax.checkpoint(f))", ["escapes"]),
        ("jax.jit(fun=jax.checkpoint(f))(x)", ["call"]),
        ("jax.vmap(g, jax.checkpoint(f))", ["escapes"]),
        ("fs = list([jax.checkpoint(f)])\nfor g in fs:\n    g(x)", ["call"]),
        ("fs = tuple(jax.checkpoint(f) for _ in xs)\nfs[1](x)", ["call"]),
        ("jax.checkpoint(jax.checkpoint(f))", ["checkpoint", "discarded"]),
        ("jax.checkpoint(f)", ["discarded"]),
        ("run(jax.checkpoint(f))", ["escapes"]),
        ("table['f'] = jax.checkpoint(f)", ["escapes"]),
        ("def make():\n    return jax.checkpoint(f)", ["returned"]),
        ("def make():\n    return jax.checkpoint(f)\nmake()(x)", ["returned", "call"]),
        ("fs = [jax.checkpoint(f) for _ in xs]\nfor g in fs:\n    g(x)", ["call"]),
        ("fs = [jax.checkpoint(f)]\nfs[0](x)", ["call"]),
        ("def apply(g, x):\n    return g(x)\napply(jax.checkpoint(f), x)", ["call"]),
        ("def apply(x, g=jax.checkpoint(f)):\n    return g(x)", ["call"]),
        ("g = jax.checkpoint(f) if flag else f\ng(x)", ["call"]),
        ("if flag:\n    f = jax.checkpoint(f)\njax.lax.scan(f, c, xs)", ["loop"]),
        (
            "class A:\n    def setup(self):\n        self.g = jax.checkpoint(f)\n"
            "    def run(self, x):\n        return self.g(x)",
            ["call"],
        ),
    ],
)
def test_where_a_checkpointed_function_goes(code, kinds):
    found = facts(f"import jax\ndef f(x): ...\n{code}")
    uses = [u.kind for s in found.sites for u in found.flows.site_uses(s) if s.qualname != "x"]
    if "flax" in code:
        assert uses == ["loop"]
    else:
        assert sorted(uses) == sorted(kinds)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("jax.grad(outer)", {"reverse"}),
        ("jax.jvp(outer, (x,), (t,))", {"forward"}),
        ("jax.lax.scan(outer, c, xs)", {"loop"}),
        ("jax.lax.cond(p, outer, g, x)", {"branch"}),
        ("jax.checkpoint(outer)(x)", {"checkpoint"}),
        ("jax.grad(lambda x: outer(x))", {"reverse"}),
        ("def a(x):\n    return outer(x)\njax.jit(jax.grad(a))", {"reverse"}),
        (
            "def a(x):\n    return outer(x)\ndef b(c, x):\n    return a(x), x\n"
            "jax.lax.scan(b, c, xs)",
            {"loop"},
        ),
        ("v = jax.custom_vjp(g)\nv.defvjp(outer, g)", {"rule", "only_rule"}),
        ("outer(x)", set()),
        ("run(outer)", {"unknown"}),
    ],
)
def test_under_what_code_runs(code, expected):
    found = facts(
        "import jax\ndef f(x): ...\ndef outer(x):\n    return jax.checkpoint(f)(x)\n" + code
    )
    site = next(s for s in found.sites if s.node.lineno == 4)
    context = found.contexts.at(site.node)
    names = ("forward", "loop", "branch", "checkpoint", "rule", "only_rule", "unknown")
    shown = {n for n in names if getattr(context, n)} | ({"reverse"} if context.reverse else set())
    assert shown == expected


FILES = {
    "pkg/__init__.py": "from .model import loss\n",
    "pkg/model.py": "import jax\n\n\n@jax.checkpoint\ndef loss(w):\n    return w\n",
    "pkg/shim.py": "import jax\nckpt = jax.checkpoint\n",
}


@pytest.mark.parametrize(
    ("code", "values"),
    [
        ("if a:\n    x = 1\nelse:\n    x = 2\n    print(x)", [2]),
        ("x = 0\nif a:\n    x = 1\nelse:\n    print(x)", [0]),
        ("x = 0\nif a:\n    x = 1\nprint(x)", [0, 1]),
        ("x = 0\nif a:\n    if b:\n        x = 1\n    else:\n        print(x)", [0]),
    ],
)
def test_what_one_arm_binds_is_not_seen_in_the_other(code, values):
    names = facts(code).names
    (use,) = (n for n in names.loads["x"])
    assert [ast.literal_eval(b.value) for b in names.bindings(use)] == values


def project(tmp_path, files):
    modules = []
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        modules.append(ProjectModule(path, dotted))
    return Project(lambda: modules, complete=True)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("train.py", "import jax\nfrom pkg.model import loss\njax.grad(loss)\n"),
        ("train.py", "import jax\nfrom pkg import loss as l\njax.grad(l)\n"),
        ("train.py", "import jax\nimport pkg.model\njax.grad(pkg.model.loss)\n"),
        ("train.py", "import jax\nfrom pkg import model as m\njax.grad(m.loss)\n"),
        ("pkg/train.py", "import jax\nfrom .model import loss\njax.grad(loss)\n"),
        ("pkg/train.py", "import jax\nfrom . import model\njax.grad(model.loss)\n"),
        ("pkg/sub/train.py", "import jax\nfrom ..model import loss\njax.grad(loss)\n"),
        ("pkg/script.py", "import jax\nfrom model import loss\njax.grad(loss)\n"),
    ],
)
def test_uses_in_other_modules(tmp_path, name, code):
    index = project(tmp_path, {**FILES, name: code})
    home = index.module_at(tmp_path / "pkg" / "model.py")
    found = index.facts(home)
    (use,) = index.remote_uses("pkg.model.loss", home.path)
    assert (use.kind, use.callee) == ("derivative", "jax.grad")
    assert use.path.endswith(name.rpartition("/")[2])
    assert [s.qualname for s in found.sites] == ["jax.checkpoint"]


def test_a_function_of_the_same_name_elsewhere_is_another(tmp_path):
    other = "import jax\nfrom other.model import loss\njax.grad(loss)\n"
    mine = "import jax\ndef loss(w): ...\njax.grad(loss)\n"
    index = project(tmp_path, {**FILES, "train.py": other, "pkg/more.py": mine})
    assert index.remote_uses("pkg.model.loss", tmp_path / "pkg" / "model.py") == ()


def test_an_alias_in_another_module_is_seen_through(tmp_path):
    index = project(tmp_path, FILES)
    code = "from pkg.shim import ckpt\nckpt(f)"
    assert [q for q, _ in sites(code, project=index, path=tmp_path / "train.py")] == [
        "jax.checkpoint"
    ]
    assert sites(code) == []


def test_grammar_newer_than_the_interpreter(monkeypatch):
    """What this Python refuses is blanked in place: the rest keeps its rows and columns."""
    newer = """\
    import jax
    type Pair[T] = tuple[T, T]
    type Of[
        A,
        B: int,
    ] = tuple[A, B]
    def f[
        T: (int, str),
    ](x: T) -> T:
        s = f"{x!r:{'>'}{"a"}} {
            x}"
        try:
            return jax.checkpoint(lambda y: y)(x)
        except ValueError, TypeError:
            return s
    """
    text = textwrap.dedent(newer)
    real = compile

    def old(source, *args, **kwargs):
        try:
            real(text, "<x>", "exec")
        except SyntaxError:
            return real(source, *args, **kwargs)
        if isinstance(source, str) and source == text:
            raise SyntaxError("too new", ("<x>", 2, 6, ""))
        return real(source, *args, **kwargs)

    monkeypatch.setattr("builtins.compile", old)
    found = facts(newer)
    (site,) = found.sites
    assert (site.node.lineno, site.node.col_offset) == (13, 15)
    assert isinstance(found.names.tree.body[2], (ast.FunctionDef, ast.Expr, ast.Assign))


@pytest.mark.parametrize(
    ("keywords", "policy", "cse"),
    [
        ("", "none", True),
        ("policy=None", "none", True),
        ("policy=cp.dots_saveable", "plain", True),
        ("policy=cp.dots_saveable()", "called", True),
        ("policy=cp.save_only_these_names", "uncalled", True),
        ("policy=cp.save_only_these_names('a')", "factory", True),
        ("policy=lambda prim, *_, **__: True", "callable", True),
        ("policy=given", "unknown", True),
        ("policy=cp.dots_saveable if flag else None", "unknown", True),
        ("prevent_cse=False", "none", False),
        ("prevent_cse=flag", "none", None),
        ("**options", "unknown", None),
        ("**{'policy': None, 'prevent_cse': False}", "none", False),
        ("**{key: None}", "unknown", None),
        ("**{1: None}", "unknown", None),
        ("**dict(policy=cp.dots_saveable)", "plain", True),
        ("**dict(given)", "unknown", None),
    ],
)
def test_keywords(keywords, policy, cse):
    found = facts(
        "import jax\ncp = jax.checkpoint_policies\n\n\ndef wrap(f, given, flag, key, options):\n"
        f"    return jax.checkpoint(f, {keywords})\n"
    )
    (site,) = found.sites
    assert (found.policy(site).kind, found.prevent_cse(site)) == (policy, cse)


def test_scripts_of_two_directories_import_their_own_neighbours(tmp_path):
    files = {"a/ours.py": "import jax\nckpt = jax.checkpoint\n", "b/ours.py": "ckpt = print\n"}
    index = project(tmp_path, files)
    of_a, of_b = (index.canonical("ours.ckpt", tmp_path / d / "train.py") for d in "ab")
    assert (of_a, of_b) == ("jax.checkpoint", "b.ours.ckpt")
