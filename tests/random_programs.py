"""Random differentiable programs, written as source text.

`program(seed)` is a module with a function `loss` and its abstract inputs `loss_inputs`, the same
for a seed in every run. It is text, so that what a tool claims can be done to it: a checkpoint can
be taken out (`Program.source(without=k)`), a plan can be written into it. Every line stays where it
is when a checkpoint goes, and no two checkpoints share a line.

    python -m tests.random_programs 7           prints the program of seed 7
    python -m tests.random_programs 7 --without 0   without its first checkpoint
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PRELUDE = """\
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

cp = jax.checkpoint_policies
FLIP = np.array([2, 0, 3, 1])
RAMP = np.linspace(0.5, 1.5, 8, dtype=np.float32)
MESH = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["w", "b", "s", "z", "n", "ws", "mask", "empty", "key", "more"],
    meta_fields=["act", "deep"],
)
@dataclasses.dataclass
class Params:
    w: object
    b: object
    s: object
    z: object
    n: object
    ws: object
    mask: object
    empty: object
    key: object
    more: object
    act: str = "tanh"
    deep: bool = True


@jax.tree_util.register_pytree_with_keys_class
class Pair:
    def __init__(self, left, right, label="pair"):
        self.left, self.right, self.label = left, right, label

    def tree_flatten_with_keys(self):
        key = jax.tree_util.GetAttrKey
        return ((key("left"), self.left), (key("right"), self.right)), self.label

    @classmethod
    def tree_unflatten(cls, label, children):
        return cls(*children, label)


def same(f):
    return f


@jax.custom_vjp
def gated(h, w):
    return jnp.tanh(h @ w)


def gated_fwd(h, w):
    y = gated(h, w)
    return y, {"y": y, "in": Pair(h, w), "up": y > 0, "best": jnp.argmax(h, 1), "none": None}


def gated_bwd(kept, g):
    g = g * (1 - kept["y"] ** 2) * jnp.where(kept["up"], 1.0, 0.5)
    return g @ kept["in"].right.T, kept["in"].left.T @ g


gated.defvjp(gated_fwd, gated_bwd)


@jax.custom_vjp
def picked(h, n):
    return h * jnp.cos(n.astype(h.dtype))


def picked_fwd(h, n):
    return picked(h, n), n


def picked_bwd(n, g):
    return g * jnp.cos(n.astype(g.dtype)), np.zeros(n.shape, jax.dtypes.float0)


picked.defvjp(picked_fwd, picked_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def leaky(h, slope):
    return jnp.where(h > 0, h, slope * h)


def leaky_fwd(h, slope):
    return leaky(h, slope), (h > 0).astype(jnp.int8)


def leaky_bwd(slope, sign, g):
    return (jnp.where(sign > 0, g, slope * g),)


leaky.defvjp(leaky_fwd, leaky_bwd)


@jax.custom_vjp
def noisy(h, key):
    return h + 0.1 * jax.random.normal(key, h.shape)


def noisy_fwd(h, key):
    return noisy(h, key), (key, h)


def noisy_bwd(kept, g):
    key, h = kept
    return g * jax.random.uniform(key, h.shape), None


noisy.defvjp(noisy_fwd, noisy_bwd)


@jax.custom_jvp
def swish(h, s):
    return h / (1 + jnp.exp(-s * h))


@swish.defjvp
def swish_jvp(primals, tangents):
    (h, s), (dh, ds) = primals, tangents
    y = swish(h, s)
    return y, dh * jax.nn.sigmoid(s * h) + 0.1 * ds * y * h


@jax.jit
def shared(h):
    return jnp.sin(h) * jnp.cos(h)


def only_sines(prim, *_, **__):
    return prim.name in ("sin", "cos")
"""

_LOSS_INPUTS = """\
def loss_inputs():
    def f32(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    params = Params(
        w=f32(8, 8),
        b=f32(8),
        s=f32(),
        z=jax.ShapeDtypeStruct((8,), jnp.complex64),
        n=jax.ShapeDtypeStruct((), jnp.int32),
        ws=f32(3, 8, 8),
        mask=jax.ShapeDtypeStruct((4,), jnp.bool_),
        empty=f32(0, 8),
        key=jax.eval_shape(lambda: jax.random.key(0)),
        more={more},
    )
    return f32(4, 8), params, {static}
"""

_MORE = (
    "None",
    '{"gain": f32(8), "none": None}',
    "Pair(f32(8), None)",
    "(f32(8), [f32(8, 8)])",
)
# The argument of settings: leaves that are no arrays.
_STATIC = (
    '"relu"',
    "True",
    "None",
    '{"act": "relu", "flip": True, "scale": None}',
    '("gelu", False)',
)

POLICIES = (
    None,
    None,
    "cp.nothing_saveable",
    "cp.everything_saveable",
    "cp.dots_saveable",
    "cp.dots_with_no_batch_dims_saveable",
    'cp.save_only_these_names("a")',
    'cp.save_only_these_names("nowhere")',
    'cp.save_any_names_but_these("b")',
    'cp.save_anything_except_these_names("a")',
    'cp.save_from_both_policies(cp.dots_saveable, cp.save_only_these_names("b"))',
    "only_sines",
    'cp.offload_dot_with_no_batch_dims("device", "pinned_host")',
    'cp.save_and_offload_only_these_names(names_which_can_be_saved=["b"],'
    ' names_which_can_be_offloaded=["a"], offload_src="device", offload_dst="pinned_host")',
)

# One line each, from `h` to a new `h` of the same shape; `p` are the parameters.
PLAIN = (
    "h = jnp.sin(h)",
    "h = jnp.exp(-jnp.abs(h))",
    "h = jnp.tanh(h @ p.w)",
    "h = h @ p.w + p.b",
    "h = h @ p.w",
    "h = jnp.einsum('bi,bij->bj', h, jnp.stack([p.w] * 4))",
    "h = h**2 / 2 - h",
    "h = jnp.sqrt(jnp.abs(h) + 1)",
    "h = jax.nn.relu(h)",
    "h = jax.nn.gelu(h)",
    "h = jax.nn.softmax(h, axis=-1)",
    "h = h - jax.nn.logsumexp(h, axis=-1, keepdims=True)",
    "h = (h - h.mean(-1, keepdims=True)) * lax.rsqrt(h.var(-1, keepdims=True) + 1e-5) * p.b",
    "h = h * p.s + RAMP",
    "h = h / (1 + p.s**2)",
    "h = h[FLIP] * h",
    "h = h + h[p.n % 4]",
    "h = h.at[1].set(jnp.cos(h[0]))",
    "h = h.at[:, :3].max(0.1)",
    "h = lax.dynamic_update_slice(h, h[:1] * p.s, (p.n % 4, 0))",
    "h = jnp.concatenate([h[:, 2:] * h[:, :-2], h[:, :2]], axis=1)",
    "h = jnp.where(p.mask[:, None], h, jnp.sin(h))",
    "h = jnp.where(h > 0, h, 0.0) + h * lax.stop_gradient(jnp.cos(h))",
    "h = jnp.cumsum(h, axis=0) / 4",
    "h = jnp.sort(h, axis=1) * p.b",
    "h = lax.top_k(h, 8)[0]",
    "h = h * jnp.max(h, axis=1, keepdims=True)",
    "h = jnp.log1p(h * h).astype(jnp.bfloat16).astype(jnp.float32)",
    "h = jnp.sin(h.reshape(8, 4).T).reshape(4, 8) * 0.5",
    "h = jnp.abs(h * p.z) + jnp.real(p.z)",
    "h = jnp.real(jnp.fft.ifft(jnp.fft.fft(h) * p.z))",
    "h = jnp.real(jnp.exp(1j * h) * jnp.conj(p.z)) * 0.5",
    "h = lax.complex(h, jnp.cos(h)).imag * h",
    "h = jnp.linalg.solve(p.w @ p.w.T + 8 * jnp.eye(8), h.T).T",
    "h = lax.associative_scan(lambda a, b: a * b, jnp.cos(h))",
    "h = lax.conv_general_dilated(h[None, None], jnp.ones((1, 1, 3, 3)) * p.s,"
    " (1, 1), 'SAME')[0, 0]",
    "h = jnp.where(jax.random.bernoulli(p.key, 0.5, h.shape), h / 0.5, 0.0)",
    "h = h * jax.random.normal(jax.random.fold_in(p.key, p.n), h.shape)",
    "h = gated(h, p.w)",
    "h = picked(h, p.n)",
    "h = leaky(h, 0.2)",
    "h = noisy(h, p.key)",
    "h = swish(h, p.s)",
    "h = shared(h)",
    "h = shared(shared(h))",
    "h = jnp.tanh(h) if p.act == 'tanh' else h",
    "h = h + p.empty.sum()",
    "h = h * lax.while_loop(lambda i: i < p.n, lambda i: i + 1, 0)",
    "h = lax.fori_loop(0, 3, lambda i, a: jnp.sin(a) * (i + 1), h)",
    "h = jax.vmap(lambda r, q: r @ p.w * q)(h, h[:, 0])",
    "h = checkpoint_name(h, 'a')",
    "h = checkpoint_name(jnp.sin(h), 'b')",
    "h = checkpoint_name(h @ p.w, 'a')",
    "h = jax.linearize(jnp.tanh, h)[1](jnp.ones_like(h)) * h",
    "h = sum(jax.tree.leaves(jax.tree.map(lambda leaf: leaf.sum(), p.more)), h)",
)

_OUTPUTS = (
    "return jnp.sum(h)",
    "return jnp.sum(h)",
    "return jnp.mean(h**2)",
    "return jnp.sum(h * jnp.cos(h)), {'n': p.n, 'none': None}",
    "return h.astype(jnp.bfloat16)",
    "return lax.complex(h, h * p.s)",
    "return Pair(h.mean(), jnp.argmax(h), 'out')",
)

# With how many levels of bodies a program is written, and how many steps a body has.
_DEPTH = 3
_MARK = re.compile(r"\x00(\d+)\x00")


@dataclass(frozen=True)
class Site:
    """A checkpoint in a program: its text, what stands there without it, and the lines that are
    its own: of its call, of the definition and body of what it wraps."""

    text: str
    plain: str
    lines: frozenset[int]


@dataclass(frozen=True)
class Program:
    """A module as text; `sites` are its checkpoints in order of source."""

    seed: int
    marked: str
    sites: tuple[Site, ...]

    def source(self, without: int | None = None) -> str:
        """Return the module's text, without one of its checkpoints where `without` names it."""

        def chosen(mark: re.Match[str]) -> str:
            number = int(mark[1])
            site = self.sites[number]
            return site.plain if number == without else site.text

        return _MARK.sub(chosen, self.marked)

    def site_at(self, line: int, end: int | None = None) -> int | None:
        """Return the number of the checkpoint that a line (of the body's definition, or of its
        call) belongs to; None where it is of none."""
        for number, site in enumerate(self.sites):
            if line in site.lines:
                return number
        return None


def program(seed: int) -> Program:
    """Return the program of a seed."""
    return _Writer(seed).program()


class _Writer:
    """Writes one program; `h` is the value that steps map, `p` the parameters."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"program {seed}")
        self.lines: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.own: list[set[int]] = []
        self.functions = 0
        self.left = self.rng.choice((1, 2, 2, 3, 4, 6, 9))  # bodies still to be written
        # What JAX refuses inside what is being written: custom_vjp under forward mode ("forward"),
        # a shard_map in another ("manual").
        self.refused: list[str] = []

    def program(self) -> Program:
        self.lines = PRELUDE.splitlines()
        self.emit(0, "")
        self.emit(0, "")
        self.emit(0, "def loss(h, p, settings):")
        if self.rng.random() < 0.3:
            self.emit(1, 'act = settings["act"] if isinstance(settings, dict) else settings')
            self.emit(1, 'h = jax.nn.relu(h) if act == "relu" else jnp.sin(h)')
        for _ in range(self.rng.randint(1, 3)):
            self.plain(1)
            self.step(1, _DEPTH)
        self.emit(1, self.rng.choice(_OUTPUTS))
        self.emit(0, "")
        self.emit(0, "")
        static, more = self.rng.choice(_STATIC), self.rng.choice(_MORE)
        self.lines += _LOSS_INPUTS.replace("{more}", more).replace("{static}", static).splitlines()
        sites = tuple(
            Site(text, plain, frozenset(lines))
            for (text, plain), lines in zip(self.texts, self.own, strict=True)
        )
        return Program(self.seed, "\n".join(self.lines) + "\n", sites)

    # Text

    def emit(self, level: int, text: str, *sites: int) -> None:
        self.lines.append("    " * level + text if text else "")
        for site in sites:
            self.own[site].add(len(self.lines))

    def plain(self, level: int) -> None:
        refused = [word for word in self.refused if word == "forward"] and _OWN_VJP
        self.emit(level, self.rng.choice([s for s in PLAIN if not any(w in s for w in refused)]))

    def policy(self, prevent_cse: bool = True) -> str:
        """Return the keywords of a checkpoint."""
        chosen = self.rng.choice(POLICIES)
        given = [] if chosen is None else [f"policy={chosen}"]
        if not prevent_cse:
            given.append("prevent_cse=False")
        return ", ".join(given)

    def site(self, text: str, plain: str) -> int:
        self.texts.append((text, plain))
        self.own.append(set())
        return len(self.texts) - 1

    def wrapped(self, function: str, line: int, keywords: str, plain: str | None = None) -> int:
        """Return the number of a checkpoint around a function that is defined at a line."""
        name = self.rng.choice(("jax.checkpoint", "jax.checkpoint", "jax.remat"))
        inside = f"{function}, {keywords}" if keywords else function
        number = self.site(f"{name}({inside})", plain or function)
        if line:
            self.own[number].add(line)
        return number

    # Bodies

    def body(self, level: int, depth: int, parameters: str = "h", result: str = "h") -> str:
        """Writes a function and returns its name; `self.defined` is the line that it starts at."""
        self.functions += 1
        self.left -= 1
        name = f"f{self.functions}"
        self.emit(level, f"def {name}({parameters}):")
        at = len(self.lines)
        for _ in range(self.rng.randint(1, 2)):
            self.plain(level + 1)
        if depth > 0 and self.left > 0:
            for _ in range(self.rng.choice((1, 1, 2))):
                self.step(level + 1, depth - 1)
                if self.rng.random() < 0.5:
                    self.plain(level + 1)
        self.emit(level + 1, f"return {result}")
        self.defined = at
        return name

    def step(self, level: int, depth: int) -> None:
        kinds = _CHECKPOINTS if self.rng.random() < 0.45 else _BODIES
        allowed = [kind for kind in kinds if _REFUSES.get(kind) not in self.refused]
        self.rng.choice(allowed)(self, level, depth)

    @contextlib.contextmanager
    def inside(self, refusal: str) -> Iterator[None]:
        self.refused.append(refusal)
        yield
        self.refused.pop()

    # Checkpoints

    def called(self, level: int, depth: int) -> None:
        f = self.body(level, depth)
        k = self.wrapped(f, self.defined, self.policy(self.rng.random() < 0.7))
        self.emit(level, f"h = {_mark(k)}(h)", k)

    def with_arguments(self, level: int, depth: int) -> None:
        f = self.body(level, depth, "h, q, extra", "h * q.s + extra['w'].sum()")
        k = self.wrapped(f, self.defined, self.policy())
        self.emit(level, f'h = {_mark(k)}(h, p, {{"w": p.w, "none": None, "n": p.n}})', k)

    def static_argument(self, level: int, depth: int) -> None:
        f = self.body(level, depth, "h, times, flip", "h * times if flip else h")
        keywords = self.policy()
        keywords = f"{keywords}, static_argnums=(1, 2)" if keywords else "static_argnums=(1, 2)"
        k = self.wrapped(f, self.defined, keywords)
        self.emit(level, f"h = {_mark(k)}(h, {self.rng.choice((2, 0.5))}, True)", k)

    def decorated(self, level: int, depth: int) -> None:
        keywords = self.policy()
        text = f"functools.partial(jax.checkpoint, {keywords})" if keywords else "jax.checkpoint"
        k = self.site(f"@{text}", "@same")
        self.emit(level, _mark(k), k)
        f = self.body(level, depth)
        self.own[k].add(self.defined)
        self.emit(level, f"h = {f}(h)", k)

    def assigned_in_a_loop(self, level: int, depth: int) -> None:
        f = self.body(level, depth)
        k = self.wrapped(f, self.defined, self.policy())
        self.emit(level, f"{f}_kept = {_mark(k)}", k)
        self.emit(level, f"for _ in range({self.rng.choice((2, 3))}):")
        self.emit(level + 1, f"h = {f}_kept(h)", k)

    def twice(self, level: int, depth: int) -> None:
        f = self.body(level, depth)
        inner = self.wrapped(f, self.defined, self.policy())
        self.emit(level, f"def {f}_inner(h):")
        at = len(self.lines)
        self.emit(level + 1, f"return {_mark(inner)}(h)", inner)
        outer = self.wrapped(f"{f}_inner", at, self.policy())
        self.emit(level, f"h = {_mark(outer)}(h)", outer)

    def scanned(self, level: int, depth: int) -> None:
        f = self.body(level, depth, "h, w", "(h @ w, {'y': jnp.sin(h).sum(0), 'none': None})")
        k = self.wrapped(f, self.defined, self.policy(False))
        self.emit(level, f"h, ys = lax.scan({_mark(k)}, h, p.ws, unroll={self.unroll()})", k)
        self.emit(level, "h = h + ys['y'].mean(0)")

    def scan_of_scans(self, level: int, depth: int) -> None:
        f = self.body(level, min(depth, 1), "h, x", "(h * x, None)")
        inner = self.wrapped(f, self.defined, self.policy(False))
        self.emit(level, f"def {f}_outer(h, xs):")
        at = len(self.lines)
        self.emit(level + 1, f"return lax.scan({_mark(inner)}, h, xs)", inner)
        outer = self.wrapped(f"{f}_outer", at, self.policy(False))
        self.emit(level, f"h, _ = lax.scan({_mark(outer)}, h, p.ws[:2, :3, 0])", outer)

    def complex_body(self, level: int, depth: int) -> None:
        f = self.body(level, depth, "c", "h + 1j * jnp.cos(h)")
        # The body's first line reads `h`.
        self.lines.insert(self.defined, "    " * (level + 1) + "h = jnp.real(c) * jnp.imag(c)")
        self.shift(self.defined)
        k = self.wrapped(f, self.defined, self.policy())
        self.emit(level, f"h = jnp.abs({_mark(k)}(lax.complex(h, jnp.sin(h))))", k)

    def shift(self, after: int) -> None:
        for lines in self.own:
            moved = {line + 1 if line > after else line for line in lines}
            lines.clear()
            lines.update(moved)

    # Bodies of other kinds

    def plain_call(self, level: int, depth: int) -> None:
        f = self.body(level, depth)
        how = self.rng.choice(("{f}(h)", "jax.jit({f})(h)", "{f}(h) + {f}(h * 0.5)"))
        self.emit(level, f"h = {how.format(f=f)}")

    def scan(self, level: int, depth: int) -> None:
        result = "((h, key, i + 1), {'y': h * x.sum(), 'i': i})"
        f = self.body(level, depth, "carry, x", result)
        lines = [
            "h, key, i = carry",
            "key, sub = jax.random.split(key)",
            "h = h + 0.1 * jax.random.normal(sub, h.shape)",
        ]
        for line in reversed(lines):
            self.lines.insert(self.defined, "    " * (level + 1) + line)
            self.shift(self.defined)
        options = self.rng.choice(("", ", reverse=True", ", unroll=2"))
        self.emit(level, f"(h, _, _), ys = lax.scan({f}, (h, p.key, 0), p.ws{options})")
        self.emit(level, "h = h + ys['y'].mean(0) * ys['i'].sum()")

    def map(self, level: int, depth: int) -> None:
        f = self.body(level, depth)
        self.emit(level, f"h = lax.map({f}, jnp.stack([h, h + 1, h * 2])).mean(0)")

    def fori(self, level: int, depth: int) -> None:
        f = self.body(level, depth)
        self.emit(level, f"h = lax.fori_loop(0, 3, lambda i, h: {f}(h) / (i + 1), h)")

    def detached_while(self, level: int, depth: int) -> None:
        f = self.body(level, depth)
        self.emit(level, "h = h + lax.stop_gradient(")
        start = "(0, lax.stop_gradient(h))"
        loop = f"lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, {f}(c[1])), {start})[1]"
        self.emit(level + 1, loop)
        self.emit(level, ")")

    def cond(self, level: int, depth: int) -> None:
        f = self.body(level, depth)
        g = self.body(level, depth - 1) if self.left > 0 else "jnp.sin"
        where = self.rng.choice(("p.n > 2", "h.sum() > 0", "p.mask[0]"))
        self.emit(level, f"h = lax.cond({where}, {f}, {g}, h)")

    def switch(self, level: int, depth: int) -> None:
        f = self.body(level, depth)
        self.emit(level, f"h = lax.switch(p.n, [{f}, jnp.cos, lambda h: h @ p.w], h)")

    def vmap(self, level: int, depth: int) -> None:
        f = self.body(level, depth)
        self.emit(level, f'h = jax.vmap({f}, axis_name="v")(jnp.stack([h, h * 0.5])).sum(0)')

    def custom_root(self, level: int, depth: int) -> None:
        # Solves a**3 + 3 * a == f(h) by Newton's method, elementwise.
        f = self.body(level, depth, "h, a", "jnp.sin(h) - a**3 - 3 * a")
        wrapped = f
        sites: tuple[int, ...] = ()
        if self.rng.random() < 0.6:
            k = self.wrapped(f, self.defined, self.policy())
            sites, wrapped = (k,), _mark(k)
        self.emit(level, f"{f}_of = lambda a: {wrapped}(h, a)", *sites)
        step = f"lambda i, a: a - {f}_zero(a) / (-3 * a**2 - 3)"
        self.emit(level, "h = lax.custom_root(")
        self.emit(level + 1, f"{f}_of,")
        self.emit(level + 1, "jnp.zeros_like(h),")
        self.emit(level + 1, f"lambda {f}_zero, a: lax.fori_loop(0, 4, {step}, a),")
        self.emit(level + 1, "lambda g, y: y / g(jnp.ones_like(y)),")
        self.emit(level, ")")

    def linear_solve(self, level: int, depth: int) -> None:
        f = self.body(level, depth, "h", "jnp.mean(h, 0)")
        self.emit(level, f"{f}_scale = {f}(h)")
        self.emit(level, f"def {f}_matvec(v):")
        at = len(self.lines)
        self.emit(level + 1, f"return v + p.w.T @ (p.w @ v) + {f}_scale**2 * v")
        matvec = f"{f}_matvec"
        sites: tuple[int, ...] = ()
        if self.rng.random() < 0.6:
            k = self.wrapped(matvec, at, self.policy())
            sites, matvec = (k,), _mark(k)
        solve = "lambda mv, b: b / 2 - mv(b) / 9"
        call = f"lax.custom_linear_solve({matvec}, h[0], {solve}, symmetric=True)"
        self.emit(level, f"h = h + {call}", *sites)

    def inner_grad(self, level: int, depth: int) -> None:
        with self.inside("forward"):
            f = self.body(level, depth)
        inner = f"jax.grad(lambda a: jnp.sum({f}(a) ** 2))"
        how = self.rng.choice(
            (
                f"h = h - 0.1 * {inner}(h)",
                f"h = h + 0.1 * jax.jvp({inner}, (h,), (jnp.ones_like(h),))[1]",
                f"h = h + jax.value_and_grad(lambda a: jnp.sum({f}(a)))(h)[1]",
            )
        )
        self.emit(level, how)

    def inner_jvp(self, level: int, depth: int) -> None:
        with self.inside("forward"):
            f = self.body(level, depth)
        how = self.rng.choice(
            (
                f"h = sum(jax.jvp({f}, (h,), (jnp.cos(h),)))",
                f"h = jax.linearize({f}, h)[1](jnp.sin(h))",
                f"h = jax.vjp({f}, h)[1](h)[0]",
            )
        )
        self.emit(level, how)

    def own_vjp(self, level: int, depth: int) -> None:
        # The usual way to write a checkpoint by hand; integers and keys have float0 cotangents.
        f = self.body(level, depth, "h, p")
        self.emit(level, f"{f}_own = jax.custom_vjp({f})")
        fwd, bwd = f"lambda h, p: ({f}(h, p), (h, p))", f"lambda kept, g: jax.vjp({f}, *kept)[1](g)"
        self.emit(level, f"{f}_own.defvjp({fwd}, {bwd})")
        self.emit(level, f"h = {f}_own(h, p)")

    def own_jvp(self, level: int, depth: int) -> None:
        with self.inside("forward"):
            f = self.body(level, depth, "h, p")
        self.emit(level, f"{f}_own = jax.custom_jvp({f})")
        self.emit(level, f"{f}_own.defjvp(lambda xs, ts: jax.jvp({f}, xs, ts))")
        self.emit(level, f"h = {f}_own(h, p)")

    def shard(self, level: int, depth: int) -> None:
        with self.inside("manual"):
            f = self.body(level, depth, "h, p", "lax.psum(h, 'i')")
        options = 'mesh=MESH, in_specs=(P("i"), P()), out_specs=P(), check_vma=False'
        wrapped, sites = f, ()
        if self.rng.random() < 0.5:
            k = self.wrapped(f, self.defined, self.policy())
            wrapped, sites = _mark(k), (k,)
        self.emit(level, f"h = jax.shard_map({wrapped}, {options})(h, p)", *sites)

    def empty_scan(self, level: int, depth: int) -> None:
        f = self.body(level, depth)
        self.emit(level, f"h, _ = lax.scan(lambda h, x: ({f}(h), h * x), h, jnp.zeros((0,)))")

    def unroll(self) -> int:
        return self.rng.choice((1, 1, 3))


_CHECKPOINTS: tuple[Callable[[_Writer, int, int], None], ...] = (
    _Writer.called,
    _Writer.called,
    _Writer.with_arguments,
    _Writer.static_argument,
    _Writer.decorated,
    _Writer.assigned_in_a_loop,
    _Writer.twice,
    _Writer.scanned,
    _Writer.scanned,
    _Writer.scan_of_scans,
    _Writer.complex_body,
)
_BODIES: tuple[Callable[[_Writer, int, int], None], ...] = (
    _Writer.plain_call,
    _Writer.scan,
    _Writer.scan,
    _Writer.map,
    _Writer.fori,
    _Writer.detached_while,
    _Writer.cond,
    _Writer.switch,
    _Writer.vmap,
    _Writer.custom_root,
    _Writer.linear_solve,
    _Writer.inner_grad,
    _Writer.inner_jvp,
    _Writer.own_vjp,
    _Writer.own_jvp,
    _Writer.shard,
    _Writer.empty_scan,
)


_OWN_VJP = ("gated", "picked", "leaky", "noisy")
_REFUSES = {_Writer.own_vjp: "forward", _Writer.shard: "manual"}


def _mark(site: int) -> str:
    return f"\x00{site}\x00"


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("--without", type=int)
    given = parser.parse_args()
    print(program(given.seed).source(given.without), end="")
