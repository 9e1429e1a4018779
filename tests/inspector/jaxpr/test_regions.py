"""Where checkpoints could stand in unrolled code, against marks that each call leaves of itself.

A function under test enters a named scope with a number of its own, so the name stacks of its eqns
say which call made them; what `regions` finds it reads off the frames.
"""

import contextlib
import functools
import importlib.util
import itertools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

import jaxresid
from fixtures.inspect import gpt
from jaxresid import jax_compat
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.callsites import contains_remat
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.jaxpr.rewrite import rewritten
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.choices import Choice, everywhere
from jaxresid.inspector.variants.regions import MOST_REGIONS, regions
from tests import programs, where
from tests.small import f32

FIXTURES = where.FIXTURES / "inspect"
LAYERS, BATCH, WIDTH = 8, 4, 16
X = f32(BATCH, WIDTH)
WS = [f32(WIDTH, WIDTH)] * LAYERS
# Iterations with these are not alike.
UNLIKE = (jnp.sin, jnp.cos, jnp.exp, jnp.tanh, jnp.log1p)

_numbers = itertools.count()


def marked(name):
    return jax.named_scope(f"{name}_call{next(_numbers)}")


def marks(jaxpr, name):
    """The first eqn of each call of a function that marks itself, and that after its last."""
    calls = {}
    for i, eqn in enumerate(jaxpr.eqns):
        for mark in re.findall(rf"\b{name}_call\d+\b", jax_compat.name_stack(eqn)):
            start, _ = calls.get(mark, (i, i))
            calls[mark] = start, i + 1
    return list(calls.values())


def searched(fun, *args, **options):
    found = subject(Question(fun, args, mode="loss", **options))
    jaxpr = jax_compat.open_jaxpr(found.trace.primal().jaxpr)
    return jaxpr, regions(jaxpr, Levels(found.trace.frames)).calls


def calls(fun, *args):
    """The function and the number of calls of each region, once its runs are those marked."""
    _, found = searched(fun, *args)
    for region in found:
        for jaxpr in {id(run.jaxpr): run.jaxpr for run in region.runs}.values():
            runs = [(run.start, run.stop) for run in region.runs if run.jaxpr is jaxpr]
            known = marks(jaxpr, region.function.rpartition(".")[2].strip("<>_"))
            if known:
                assert set(runs) <= set(known)
    return [(region.function, len(region.runs)) for region in found]


def block(w, x):
    with marked("block"):
        h = jnp.tanh(x @ w)
        return x + jnp.sin(h) * 0.5


def looped(ws, x):
    for w in ws:
        x = block(w, x)
    return (x * x).sum()


def test_a_loop_of_layers():
    jaxpr, (region,) = searched(looped, WS, X)
    assert [(r.start, r.stop) for r in region.runs] == marks(jaxpr, "block")
    assert len(region.runs) == LAYERS
    assert len({run.stop - run.start for run in region.runs}) == 1
    assert region.function == "block"
    assert region.location.code == "x = block(w, x)"
    assert region.location.function == "looped"


def test_the_target_may_be_jitted():
    jaxpr, (region,) = searched(jax.jit(looped), WS, X)
    inner = nests(jaxpr.eqns[0])[0].jaxpr
    assert {id(run.jaxpr) for run in region.runs} == {id(inner)}
    assert [(r.start, r.stop) for r in region.runs] == marks(inner, "block")


@pytest.mark.parametrize("wrap", [jax.jit, functools.partial(jax.jit, static_argnums=())])
def test_layers_may_be_jitted(wrap):
    jitted = wrap(block)

    def fun(ws, x):
        for w in ws:
            x = jitted(w, x)
        return (x * x).sum()

    jaxpr, (region,) = searched(fun, WS, X)
    found = [jaxpr.eqns[r.start] for r in region.runs]
    assert [r.stop - r.start for r in region.runs] == [1] * LAYERS
    assert {jax_compat.primitive_name(eqn) for eqn in found} == {"jit"}
    assert region.function == "block"
    assert region.location.code == "x = jitted(w, x)"


def stage(name):
    def call(w, x):
        with marked(name):
            return jnp.tanh(jnp.sin(x @ w) + 1.0)

    call.__code__ = call.__code__.replace(co_name=name, co_qualname=name)
    return call


down1, down2, up2, up1, head = map(stage, ("down1", "down2", "up2", "up1", "head"))


def unet(ws, x):
    a = down1(ws[0], x)
    b = down2(ws[1], a)
    c = up2(ws[2], b) + b
    d = up1(ws[3], c) + a
    return head(ws[4], d).sum()


def test_each_stage_of_a_unet():
    names = ("down1", "down2", "up2", "up1", "head")
    assert calls(unet, WS[:5], X) == [(name, 1) for name in names]


def test_two_lines_are_two_regions():
    def fun(ws, x):
        for w in ws[:5]:
            x = block(w, x)
        for w in ws[5:]:
            x = block(w, x)
        return (x * x).sum()

    assert calls(fun, WS, X) == [("block", 5), ("block", 3)]


def test_one_line_is_one_region():
    def fun(ws, x):
        x = block(ws[0], block(ws[1], x)) + block(ws[2], x)
        return (x * x).sum()

    assert calls(fun, WS, X) == [("block", 3)]


def test_what_is_called_once_is_looked_into():
    def trunk(ws, x):
        for w in ws:
            x = block(w, x)
        return x

    def model(ws, x):
        return stage("head")(ws[0], trunk(ws, x))

    def fun(ws, x):
        return (model(ws, x) ** 2).mean()

    assert calls(fun, WS, X) == [("block", LAYERS), ("head", 1)]
    assert calls(jax.jit(fun), WS, X) == [("block", LAYERS), ("head", 1)]

    def jitted(ws, x):
        return (jax.jit(model)(ws, x) ** 2).mean()

    assert calls(jitted, WS, X) == [("block", LAYERS), ("head", 1)]


def test_what_is_found_inside_has_to_be_worth_it():
    def inline(ws, x):
        with marked("inline"):
            for made, w in zip(UNLIKE, ws, strict=False):
                x = jnp.tanh(made(x @ w))
            return stage("head")(ws[0], x)

    def fun(ws, x):
        return (stage("up1")(ws[0], inline(ws, stage("down1")(ws[0], x))) ** 2).sum()

    assert calls(fun, WS[:4], X) == [("down1", 1), ("inline", 1), ("up1", 1)]


def test_calls_of_what_is_called_again_are_not_looked_into():
    def pair(ws, x):
        with marked("pair"):
            for w in ws:
                x = block(w, x)
            return jnp.cos(x)

    def fun(ws, x):
        for i in range(0, LAYERS, 2):
            x = pair(ws[i : i + 2], x)
        return (x * x).sum()

    assert calls(fun, WS, X) == [("pair", 4)]

    def uneven(ws, xs):
        return sum(pair(ws, x).sum() for x in xs)

    assert calls(uneven, WS, [f32(64, WIDTH), X]) == [("pair", 2)]


def test_layers_of_different_shapes():
    widths = (16, 8, 24, 24, 4)
    shapes = [f32(a, b) for a, b in itertools.pairwise(widths)]

    def layer(w, x):
        with marked("layer"):
            h = x @ w
            if w.shape[0] == w.shape[1]:
                h = h + x
            return jnp.tanh(jnp.sin(h))

    def fun(ws, x):
        for w in ws:
            x = layer(w, x)
        return x.sum()

    assert calls(fun, shapes, X) == [("layer", 4)]


def test_what_the_loop_does_itself_belongs_to_no_call():
    def fun(ws, x):
        for i, w in enumerate(ws):
            x = x + block(w, x) * 0.5
            if i % 3 == 0:
                x = jnp.cos(x)
        return (x * x).sum()

    jaxpr, (region,) = searched(fun, WS, X)
    assert [(r.start, r.stop) for r in region.runs] == marks(jaxpr, "block")


def test_functions_that_take_turns():
    def fun(ws, x):
        for w in ws:
            x = stage("up1")(w, x)
            x = stage("up2")(w, x)
        return x.sum()

    assert calls(fun, WS, X) == [("up1", LAYERS), ("up2", LAYERS)]


def comprehension(ws, x):
    return sum([block(w, x) for w in ws[:4]] + [block(w, x) for w in ws[4:]]).sum()


def generator(ws, x):
    return sum(block(w, x) for w in ws).sum()


def generated(ws, x):
    def outputs():
        for w in ws:
            yield block(w, x) * 2.0

    for y in outputs():
        x = x + y
    return x.sum()


def mapped(ws, x):
    return sum(map(functools.partial(block, x=x), ws)).sum()


def reduced(ws, x):
    return functools.reduce(lambda x, w: block(w, x), ws, x).sum()


def tree_mapped(ws, x):
    return sum(jax.tree.map(lambda w: block(w, x), ws)).sum()


@pytest.mark.parametrize("fun", [comprehension, generator, generated, mapped, reduced, tree_mapped])
def test_other_ways_to_loop(fun):
    assert calls(fun, WS, X) == [("block", LAYERS)]


def test_a_lambda_that_computes_is_the_function():
    def fun(ws, x):
        return functools.reduce(lambda x, w: jnp.tanh(x @ w) + x, ws, x).sum()

    jaxpr, (region,) = searched(fun, WS, X)
    assert region.function == "<lambda>"
    starts = [i for i, e in enumerate(jaxpr.eqns) if jax_compat.primitive_name(e) == "dot_general"]
    assert [run.start for run in region.runs] == starts


def test_a_jitted_lambda_is_the_function():
    """Its body is a call too, of all of its jaxpr, which all calls share."""
    jitted = jax.jit(block)
    step = jax.jit(lambda w, x: jitted(w, x=x))

    def fun(ws, x):
        return functools.reduce(lambda x, w: step(w, x), ws, x).sum()

    jaxpr, (region,) = searched(fun, WS, X)
    assert (region.function, len(region.runs)) == ("<lambda>", LAYERS)
    assert all(run.jaxpr is jaxpr for run in region.runs)


def recursive(ws, x):
    if not ws:
        return (x * x).sum()
    return recursive(ws[1:], block(ws[0], x))


def halves(ws, x):
    if len(ws) == 1:
        return block(ws[0], x)
    return halves(ws[len(ws) // 2 :], halves(ws[: len(ws) // 2], x))


@pytest.mark.parametrize("fun", [recursive, halves])
def test_recursion(fun):
    assert calls(fun, WS, X) == [("block", LAYERS)]


class Layer:
    def __init__(self, w):
        self.w = w

    def forward(self, x):
        return jnp.sin(jnp.tanh(x @ self.w))

    def __call__(self, x):
        with marked("call"):
            return self.forward(x)


def test_methods():
    def fun(ws, x):
        for layer in [Layer(w) for w in ws]:
            x = layer(x)
        return x.sum()

    assert calls(fun, WS, X) == [("Layer.__call__", LAYERS)]


def norm(x):
    return (x - x.mean()) / jnp.sqrt(x.var() + 1e-5)


# Layers whose calls follow each other without an eqn in between.


def one_expression(w, x):
    with marked("one_expression"):
        return jax.vmap(lambda row: jnp.tanh(row @ w))(x)


def loop_after(w, x):
    with marked("loop_after"):
        h = x @ w
        for _ in range(3):
            h = jnp.sin(h)
        return h


def loop_before(w, x):
    with marked("loop_before"):
        for _ in range(3):
            x = jnp.sin(x)
        return x @ w


def loop_inside(w, x):
    with marked("loop_inside"):
        x = norm(x)
        i = 0
        while i < 3:
            x = norm(jnp.sin(x))
            i += 1
        return x @ w


def guarded(w, x):
    with marked("guarded"):
        try:
            width = w.shape[2]
        except IndexError:
            width = w.shape[1]
        h = jnp.sin(x @ w) * width
        with contextlib.suppress(ValueError):
            h = norm(h)
        return norm(jnp.tanh(h))


def raising(w, x):
    with marked("raising"):
        h = x @ w
        for i in range(3):
            try:
                if i == 1:
                    raise ValueError
                h = jnp.sin(h)
            except ValueError:
                h = jnp.cos(h)
        return jnp.tanh(h)


def mapping(w, x):
    with marked("mapping"):
        tree = jax.tree.map(jnp.sin, {"a": x, "b": x, "c": x})
        return jnp.tanh(tree["a"] @ w) + sum([tree["b"], tree["c"], x])


def early(w, x):
    with marked("early"):
        h = jnp.sin(x @ w)
        if float(w.shape[0]) > 1:
            return jnp.stack([h, x, h]).sum(0)
        return h


@pytest.mark.parametrize(
    "layer",
    [
        one_expression,
        loop_after,
        loop_before,
        loop_inside,
        guarded,
        raising,
        mapping,
        early,
    ],
)
def test_layers_of_many_kinds(layer):
    def fun(ws, x):
        for w in ws:
            x = layer(w, x)
        return x.sum()

    assert calls(fun, WS, X) == [(layer.__name__, LAYERS)]


def test_a_layer_that_is_all_loop_is_never_cut():
    def layer(ws, x):
        with marked("layer"):
            for w in ws:
                x = jnp.tanh(x @ w)
            return x

    def fun(ws, x):
        x = jnp.cos(x)
        for _ in range(3):
            x = layer(ws, x)
        y = x
        for w in ws:
            y = block(w, y)
        return y.sum()

    jaxpr, found = searched(fun, WS, X)
    region = next(r for r in found if r.function == "layer")
    known = marks(jaxpr, "layer")
    # Where the calls meet cannot be told.
    assert [(r.start, r.stop) for r in region.runs] == [(known[0][0], known[-1][1])]


def test_checkpoints_stay_outside():
    def half(w, x):
        with marked("half"):
            return jnp.sin(jax.checkpoint(block)(w, x)) * 2.0

    def fun(ws, x):
        for w in ws:
            x = jax.checkpoint(block)(w, x)
            x = half(w, x)
            x = jax.jit(half)(w, x)
            x = stage("head")(w, x)
        return x.sum()

    assert calls(fun, WS, X) == [("head", LAYERS)]
    assert calls(jax.checkpoint(looped), WS, X) == []


def test_loops_are_places_of_their_own():
    def scanned(ws, x):
        with marked("scanned"):
            return jax.lax.scan(lambda x, w: (block(w, x), None), x, ws)[0] * 1.0

    def fun(ws, w, x):
        return stage("head")(w, scanned(ws, stage("up1")(w, x))).sum()

    assert calls(fun, f32(20, WIDTH, WIDTH), WS[0], X) == [("up1", 1), ("head", 1)]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_gradients_taken_inside_are_left_alone(wrap):
    @wrap
    def energy(w, x):
        with marked("energy"):
            return jnp.tanh(jnp.sin(x @ w)).sum()

    def fun(ws, x):
        force = sum(jax.grad(energy, argnums=1)(w, x) for w in ws)
        return (stage("head")(ws[0], x) + force).sum()

    assert calls(fun, WS, X) == [("head", 1)]


def test_a_jitted_function_called_elsewhere_is_taken_whole():
    shared = jax.jit(looped)

    def most(ws, x):
        y = shared(ws, x)
        for made, w in zip(UNLIKE, ws, strict=False):
            x = jnp.cos(jnp.tanh(made(x @ w)) + 1.0)
        return y + x.sum()

    def more(ws, x):
        return shared(ws, x) * 2.0

    def fun(ws, x):
        return most(ws, x) + more(ws, x)

    jaxpr, found = searched(fun, WS, X)
    assert [(r.function, len(r.runs)) for r in found] == [("looped", 1), ("more", 1)]
    assert all(run.jaxpr is jaxpr for region in found for run in region.runs)
    alone, found = searched(most, WS, X)
    assert [(r.function, len(r.runs)) for r in found] == [("block", LAYERS)]
    assert all(run.jaxpr is not alone for region in found for run in region.runs)


def test_what_cannot_be_worth_a_checkpoint():
    def single(w, x):
        return x @ w

    def small(w):
        return jnp.tanh(jnp.sin(w[0, 0]))

    def unread(w, x):
        return jnp.tanh(jnp.sin(x @ w))

    def fun(ws, x):
        for w in ws:
            x = single(w, x) + small(w)
            unread(w, x)
            x = stage("head")(w, x)
        return x.sum()

    assert calls(fun, WS, f32(64, WIDTH)) == [("head", LAYERS)]


def test_what_does_everything_is_the_target():
    def fun(w, x):
        return stage("head")(w, x).sum()

    def more(w, x):
        return fun(w, x) + jnp.sin(x).sum()

    assert calls(fun, WS[0], X) == []
    assert calls(more, WS[0], X) == [("head", 1)]


def test_the_biggest_regions():
    stages = [stage(f"stage{i}") for i in range(MOST_REGIONS + 4)]

    def fun(w, xs):
        return sum(f(w, x).sum() for f, x in zip(stages, xs, strict=True))

    sizes = [10, 11, *range(20, MOST_REGIONS + 20), 12, 13]
    found = calls(fun, f32(WIDTH, WIDTH), [f32(n, WIDTH) for n in sizes])
    assert [name for name, _ in found] == [f"stage{i}" for i in range(2, MOST_REGIONS + 2)]


# What JAX makes of a checkpoint that the user writes.


def variant_of(fun, args, function):
    found = subject(Question(fun, args))
    variants = found.variants()
    (place,) = (p for p in variants.places() if p.kind == "call" and p.function == function)
    return variants.variant({place: everywhere(place, Choice())})


def check_equal(variant, report):
    assert variant.kept_nbytes == report.totals.computed_nbytes
    assert variant.cost.flops == report.cost.total.flops
    assert variant.peak_nbytes == pytest.approx(report.peak.nbytes, rel=0.02)


@pytest.mark.integration
def test_checkpoints_at_a_region_are_those_in_source():
    @jax.checkpoint
    def checkpointed(p, x):
        return gpt.layer(x, p)

    def fun(layers, x):
        for p in layers:
            x = checkpointed(p, x)
        return x.astype(jnp.float32).sum()

    args = [gpt.weights() for _ in range(3)], gpt.tokens()
    check_equal(variant_of(gpt.loss, args, "layer"), jaxresid.inspect(fun)(*args))
    check_equal(variant_of(gpt.loss_jit, args, "layer"), jaxresid.inspect(fun)(*args))


@functools.cache
def library(name, package):
    pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location(f"{name}_model", FIXTURES / f"{name}_model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "package", "code"),
    [
        ("linen", "flax", "x = Block(WIDTH, HEADS, self.dropout)(x, train)"),
        ("nnx", "flax", "x = call(block, x, rngs)"),
        (
            *("equinox", "equinox"),
            "x = (eqx.filter_checkpoint(layer) if self.remat else layer)(x, key)",
        ),
    ],
)
def test_blocks_of_model_libraries(name, package, code):
    module = library(name, package)
    _, found = searched(module.loss, *module.loss_inputs())
    blocks, *modules, loss = found
    assert all(each.function == "LayerNorm.__call__" and each.defined for each in modules)
    assert (blocks.function, blocks.location.code) == ("Block.__call__", code)
    assert (loss.function, len(loss.runs)) == ("cross_entropy", 1)
    assert len(blocks.runs) == module.LAYERS
    # The first of a block is the mean of its first norm; no eqn stands between two blocks.
    starts = [run.start for run in blocks.runs]
    assert starts[1:] == [run.stop for run in blocks.runs[:-1]]
    assert len({run.stop - run.start for run in blocks.runs}) == 1
    if hasattr(module, "loss_remat"):
        report = jaxresid.inspect(module.loss_remat)(*module.loss_remat_inputs())
        variant = variant_of(module.loss, module.loss_inputs(), "Block.__call__")
        check_equal(variant, report)


def extracted(jaxpr, runs):
    """The eqns of a jaxpr with its runs as calls of jaxprs of their own."""

    def regroup(eqns):
        made, at = [], 0
        for start, stop in sorted((run.start, run.stop) for run in runs):
            made += [*eqns[at:start], as_call(eqns, start, stop)]
            at = stop
        return [*made, *eqns[at:]]

    def as_call(eqns, start, stop):
        inside = eqns[start:stop]
        outvars = {v for eqn in inside for v in eqn.outvars}
        read = [v for eqn in inside for v in eqn.invars if not jax_compat.is_literal(v)]
        later = [*(v for eqn in eqns[stop:] for v in eqn.invars), *jaxpr.outvars]
        invars = list(dict.fromkeys(v for v in read if v not in outvars))
        made = dict.fromkeys(v for v in later if not jax_compat.is_literal(v))
        made = [v for v in made if v in outvars]
        body = jaxpr.replace(invars=invars, constvars=[], outvars=made, eqns=inside)
        return jax_compat.as_call(
            inside[0].replace(invars=invars, outvars=made), jax_compat.as_jit_jaxpr(body)
        )

    return regroup


def check_regions(fun, args):
    """What holds of the regions of every program."""
    found = subject(Question(fun, args, mode="loss"))
    traced = found.trace.primal()
    jaxpr = jax_compat.open_jaxpr(traced.jaxpr)
    regions_found = regions(jaxpr, Levels(found.trace.frames)).calls
    by_jaxpr = {}
    for region in regions_found:
        assert region.runs
        assert region.location is not None
        for run in region.runs:
            by_jaxpr.setdefault(id(run.jaxpr), []).append(run)
    held = [id(nest.jaxpr) for eqn in eqns_in(jaxpr) for nest in nests(eqn)]
    for key, runs in by_jaxpr.items():
        assert key == id(jaxpr) or held.count(key) == 1
        ranges = sorted((run.start, run.stop) for run in runs)
        assert all(0 <= start < stop <= len(runs[0].jaxpr.eqns) for start, stop in ranges)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
        for run in runs:
            inside = run.jaxpr.eqns[run.start : run.stop]
            assert all(jax_compat.primitive_name(eqn) != "remat" for eqn in inside)
            assert not any(contains_remat(n.jaxpr) for eqn in inside for n in nests(eqn))
            path = [run.jaxpr]
            while path[-1] is not jaxpr:  # only jitted calls are around it
                eqn = next(e for e in eqns_in(jaxpr) for n in nests(e) if n.jaxpr is path[-1])
                assert jax_compat.primitive_name(eqn) == "jit"
                holder = [jaxpr, *(n.jaxpr for e in eqns_in(jaxpr) for n in nests(e))]
                path.append(next(j for j in holder if any(e is eqn for e in j.eqns)))
    if not by_jaxpr:
        return 0
    regroups = {key: extracted(runs[0].jaxpr, runs) for key, runs in by_jaxpr.items()}
    rebuilt = jax_compat.with_jaxpr(traced.jaxpr, rewritten(jaxpr, {}, regroups))
    leaves = jax.tree.leaves(args)
    order = [leaves[i] for i in found.trace.arguments.dynamic]
    # Compiled: by itself, an inner call rounds to bfloat16 where a fusion does not.
    expected = jax.jit(jax_compat.as_function(traced.jaxpr))(*order)
    for a, b in zip(expected, jax.jit(jax_compat.as_function(rebuilt))(*order), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    return len(regions_found)


@pytest.mark.integration
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(programs.programs, programs.outputs)
def test_random_programs(program, output):
    fun = programs.function(program, output)
    assume(programs.is_differentiable(fun))
    check_regions(fun, programs.arguments())


@pytest.mark.integration
@pytest.mark.parametrize("fun", [looped, jax.jit(looped), recursive, unet, generated])
def test_written_programs(fun):
    rng = np.random.default_rng(0)
    ws = [jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / 4, jnp.float32) for _ in range(5)]
    x = jnp.asarray(rng.normal(size=(BATCH, WIDTH)), jnp.float32)
    assert check_regions(fun, (ws, x))
