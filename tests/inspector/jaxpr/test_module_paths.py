"""The path of the module that a row is of, against modules that say their own path on the name
stack."""

import re

import jax
import jax.numpy as jnp
import pytest
from small import f32

import jaxresid
from jaxresid.inspector.jaxpr.module_paths import display_path, tokens

WIDTH, BATCH = 8, 4
X = f32(BATCH, WIDTH)


class Module:
    """A pytree of its attributes; in a program that `names`, a call says where it stands."""

    names = False

    def __init_subclass__(cls):
        def flatten(module):
            children = [
                (jax.tree_util.GetAttrKey(name), value)
                for name, value in vars(module).items()
                if name != "path"
            ]
            return children, (module.path, tuple(vars(module)))

        def unflatten(aux, children):
            module = object.__new__(cls)
            rest = iter(children)
            for name in aux[1]:
                setattr(module, name, aux[0] if name == "path" else next(rest))
            return module

        jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
        called = cls.__call__

        def naming(self, *args):
            if not Module.names:
                return called(self, *args)
            with jax.named_scope(self.path or "model"):
                return called(self, *args)

        cls.__call__ = naming


class Linear(Module):
    def __init__(self, path, bias=True):
        self.path, self.weight = path, f32(WIDTH, WIDTH)
        self.bias = f32(WIDTH) if bias else None

    def __call__(self, x):
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Gelu(Module):
    def __init__(self, path):
        self.path = path

    def __call__(self, x):
        return jax.nn.gelu(x)


def jitted_sine(x):
    # Jitted anew each time: JAX would give back what it traced with names.
    return jax.jit(lambda x: jnp.sin(jnp.cos(x)))(x)


class Gate(Module):
    """Reads more of the batch than of itself."""

    def __init__(self, path):
        self.path, self.weight = path, f32(WIDTH)

    def __call__(self, batch):
        return jnp.sin(jnp.cos(batch["x"] * self.weight) * batch["mask"] * batch["more"])


class Mlp(Module):
    def __init__(self, path):
        self.path = path
        self.up, self.act = Linear(f"{path}.up"), Gelu(f"{path}.act")
        self.down = Linear(f"{path}.down", bias=False)

    def __call__(self, x):
        return jitted_sine(self.down(jnp.tanh(self.act(self.up(x)))))


class Mixing(Module):
    def __init__(self, path):
        self.path = path
        self.q, self.k = Linear(f"{path}.q"), Linear(f"{path}.k")

    def weights(self, x):
        return jax.nn.softmax(self.q(x) @ self.k(x).T)

    def __call__(self, x):
        return jnp.sin(self.weights(x) @ x)


class Block(Module):
    def __init__(self, path):
        self.path = path
        self.mixing, self.mlps = (
            Mixing(f"{path}.mixing"),
            [Mlp(f"{path}.mlps[{i}]") for i in (0, 1)],
        )
        self.scale = f32(WIDTH)

    def __call__(self, x):
        x = jnp.cos(x + self.mixing(x)) * self.scale
        for mlp in self.mlps:
            x = jnp.sin(x) * mlp(x)
        return jnp.exp(x)


class Model(Module):
    def __init__(self, blocks):
        self.path = ""
        self.embed, self.blocks, self.head = Linear("embed"), blocks, Linear("head")

    def __call__(self, x, call=lambda block, x: block(x)):
        x = jnp.sin(self.embed(x))
        for block in self.blocks:
            x = call(block, x)
        return jnp.cos(self.head(jnp.cos(x)))


class Scanned(Module):
    def __init__(self):
        self.path, self.blocks = "", jax.tree.map(lambda a: f32(3, *a.shape), Block("blocks"))
        self.head = Linear("head")

    def __call__(self, x):
        return jnp.sin(self.head(jax.lax.scan(lambda x, b: (b(x), None), x, self.blocks)[0]))


def blocks():
    return [Block(f"blocks[{i}]") for i in range(3)]


def unrolled(model, x):
    return model(x).sum()


def gated(model, batch):
    return sum(gate(batch).sum() for gate in model["gates"])


def by_name(model, x):
    return sum(block(x).sum() for block in model["net"].values())


def checkpointed(model, x):
    return model(x, jax.checkpoint(lambda block, x: block(x))).sum()


def saving(model, x):
    policy = jax.checkpoint_policies.dots_saveable
    return model(x, jax.checkpoint(lambda block, x: block(x), policy=policy)).sum()


def jitted(model, x):
    return model(x, jax.jit(lambda block, x: block(x))).sum()


def batched(model, x):
    return jax.vmap(lambda x: model(x[None]))(x).sum()


def cast(model, x):
    model = jax.tree.map(lambda a: a.astype(jnp.bfloat16), model)
    return model(x.astype(jnp.bfloat16)).astype(jnp.float32).sum()


def step(model, x):
    value, grads = jax.value_and_grad(checkpointed)(model, x)
    return jax.tree.map(lambda a, g: a - g, model, grads), value


NAMED = {"net": {"first": Block("net.first"), "second": Block("net.second")}}
PROGRAMS = [
    (unrolled, Model(blocks())),
    (by_name, NAMED),
    (gated, {"gates": [Gate(f"gates[{i}]") for i in range(2)]}),
    (checkpointed, Model(blocks())),
    (saving, Model(blocks())),
    (jitted, Model(blocks())),
    (batched, Model(blocks())),
    (cast, Model(blocks())),
    pytest.param(step, Model(blocks()), marks=pytest.mark.integration),
    (unrolled, Scanned()),
]


def report_of(fun, model, names):
    Module.names = names
    try:
        # A function of its own each time: JAX would give back what it traced with names.
        x = {"x": X, "mask": X, "more": X} if fun is gated else X
        inspect = jaxresid.inspect(lambda model, x: fun(model, x), on="tpu:v5p")  # noqa: PLW0108
        return inspect(model, x)
    finally:
        Module.names = False


def scopes(report):
    """Where nothing tells the path, the scope is the classes, `Model`: no path."""
    computed = [r.origin.scope for r in report.residuals if r.origin.kind == "computed"]
    return ["" if scope in ("Model", "Scanned") else scope for scope in computed]


def last_named(scope):
    """What the innermost module said: `model/blocks[0]/blocks[0].mlps[1]`. One that has no
    parameters is taken for part of what calls it."""
    return scope.rpartition("/")[2].removeprefix("model").removesuffix(".act")


@pytest.mark.integration
@pytest.mark.parametrize(("fun", "model"), PROGRAMS)
def test_paths_are_those_that_the_modules_say(fun, model):
    said, found = (scopes(report_of(fun, model, names)) for names in (True, False))
    assert said
    assert found == [last_named(scope) for scope in said]


@pytest.mark.integration
def test_a_checkpoint_is_of_the_module_that_it_wraps():
    for fun in (checkpointed, step):
        (site,) = report_of(fun, Model(blocks()), False).checkpoints
        assert (site.function, site.source.scope) == ("Block", "blocks[0..2]")


@pytest.mark.parametrize(
    "fun", [unrolled, batched, pytest.param(step, marks=pytest.mark.integration)]
)
def test_the_peak_says_the_same_of_both_passes(fun):
    """Or less: what is transposed runs in another order; jax_remat3 mixes it with the rest."""
    said, found = (report_of(fun, Model(blocks()), names).peak.live for names in (True, False))
    named = {}
    for value in said:
        key = value.location, value.primitive
        named.setdefault(key, set()).add(without_numbers(last_named(value.source.scope)))
    backward = [v for v in found if v.phase == "backward" and not v.source.scope[:1].isupper()]
    right = 0
    for value in backward:
        path, known = without_numbers(value.source.scope), named[value.location, value.primitive]
        assert any(other == path or other.startswith(f"{path}.") for other in known)
        right += path in known
    assert len(backward) > 2
    assert right > 0.5 * len(backward)


def without_numbers(path):
    return re.sub(r"\[[\d.]+\]", "[]", path)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("params['blocks'][3]['mlp']", "blocks[3].mlp"),
        ("model.blocks[3].mlp", "blocks[3].mlp"),
        ("blocks[3].mlp", "blocks[3].mlp"),
        ("model", ""),
    ],
)
def test_how_a_path_is_shown(path, text):
    assert display_path(tokens(path)) == text
