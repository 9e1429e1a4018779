"""Checkpoints that are alike: a few are taken away, and the others' figures are none the worse."""

import dataclasses

import jax
import pytest

import jaxresid
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.checkpoints import alike, counterfactuals
from jaxresid.inspector.checkpoints.removed import Removed
from jaxresid.inspector.holes.loss import LossHole
from jaxresid.inspector.memory import differences
from jaxresid.inspector.memory.differences import are_alike, difference
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.program.build import value_and_gradients
from jaxresid.inspector.report import subject
from tests import checkpoint_lines
from tests.small import f32

WS, X, MASK = f32(64, 64), f32(64, 64), f32(64, 64)


@pytest.fixture
def chain(tmp_path):
    """Return a function that makes a loss of a module's text, and its arguments."""

    def made(text):
        path = tmp_path / "chain.py"
        path.write_text(text)
        module = {}
        exec(compile(text, str(path), "exec"), module)
        return module["loss"], ([WS] * module["depth"], X, MASK)

    return made


def same_layers(depth, call="jax.checkpoint(mixer)(x, ws[{i}], m)", end="jnp.sum(x)"):
    calls = [f"    x = {call.format(i=i)}" for i in range(depth)]
    lines = ["def loss(ws, x, m):", *calls, f"    return {end}", f"depth = {depth}"]
    return "\n".join([checkpoint_lines.LAYERS, *lines])


def leave_out_nothing(monkeypatch):
    monkeypatch.setattr(Removed, "few_without", lambda *_: None)


def one_by_one(monkeypatch, fun, args, on):
    """Return the checkpoints as they are judged when each is taken away."""
    with monkeypatch.context() as patched:
        patched.setattr(counterfactuals, "_FEW", 10**9)
        leave_out_nothing(patched)
        return jaxresid.inspect(fun, on=on)(*args).checkpoints


def taken_away(monkeypatch):
    """Count the programs that are made without a checkpoint."""
    sites = []
    init = counterfactuals.Counterfactuals.__init__

    def counting(self, make, *args, **options):
        def made(site):
            sites.append(site)
            return make(site)

        init(self, made, *args, **options)

    monkeypatch.setattr(counterfactuals.Counterfactuals, "__init__", counting)
    return sites


@pytest.mark.parametrize(
    "on",
    [
        "tpu:v5p",
        pytest.param("gpu:h100", marks=pytest.mark.integration),
        pytest.param("cpu", marks=pytest.mark.integration),
    ],
)
def test_of_many_alike_lines_a_few_are_taken_away(chain, monkeypatch, on):
    fun, args = chain(same_layers(20))
    expected = one_by_one(monkeypatch, fun, args, on)
    sites = taken_away(monkeypatch)
    found = jaxresid.inspect(fun, on=on)(*args).checkpoints
    assert found == expected
    assert len(found) == 20
    assert len(sites) <= 9


@pytest.mark.integration
@pytest.mark.parametrize("on", ["gpu:h100", "tpu:v5p"])
def test_of_many_alike_lines_of_a_step_a_few_are_taken_away(chain, monkeypatch, on):
    loss, args = chain(same_layers(16))

    def step(ws, x, m):
        return [w - 0.1 * d for w, d in zip(ws, jax.grad(loss)(ws, x, m), strict=True)]

    expected = one_by_one(monkeypatch, step, args, on)
    sites = taken_away(monkeypatch)
    found = jaxresid.inspect(step, on=on, mode="program")(*args).checkpoints
    assert found == expected
    assert len(found) == 16
    assert len(sites) <= 10


@pytest.mark.parametrize(
    "seed",
    [
        2,
        *(pytest.param(s, marks=pytest.mark.integration) for s in (0, 1, 3)),
        *(pytest.param(s, marks=pytest.mark.slow) for s in range(4, 20)),
        *(pytest.param(s, marks=pytest.mark.programs) for s in range(20, 60)),
    ],
)
def test_what_alike_lines_are_worth_is_what_each_taken_away_says(chain, monkeypatch, seed):
    fun, args = chain(checkpoint_lines.source(seed))
    on = ("tpu:v5e", "gpu:h100", "tpu:v5p")[seed % 3]
    expected = one_by_one(monkeypatch, fun, args, on)
    assert jaxresid.inspect(fun, on=on)(*args).checkpoints == expected


@pytest.mark.integration
def test_a_change_that_is_moved_wrongly_is_found_out(chain, monkeypatch):
    fun, args = chain(same_layers(12))
    expected = one_by_one(monkeypatch, fun, args, "tpu:v5p")
    monkeypatch.setattr(differences.Difference, "moved", lambda self, here, there: self.base)
    leave_out_nothing(monkeypatch)
    sites = taken_away(monkeypatch)
    assert jaxresid.inspect(fun, on="tpu:v5p")(*args).checkpoints == expected
    assert len(sites) == 12


@pytest.mark.integration
@pytest.mark.parametrize("figure", ["kept_nbytes", "cost"])
def test_alike_lines_whose_residuals_or_cost_differ_are_each_taken_away(chain, monkeypatch, figure):
    fun, args = chain(same_layers(12))
    make, count = counterfactuals.Counterfactuals.__init__, iter(range(100))

    def others(self, without, *rest, **options):
        def made(site):
            found = without(site)
            more = getattr(found, figure)
            more += next(count) if figure == "kept_nbytes" else type(more)(next(count))
            return dataclasses.replace(found, **{figure: more})

        make(self, made, *rest, **options)

    monkeypatch.setattr(counterfactuals.Counterfactuals, "__init__", others)
    leave_out_nothing(monkeypatch)
    jaxresid.inspect(fun, on="tpu:v5p")(*args)
    assert next(count) == 12


def kernels_without(fun, args, which):
    found = subject(Question(fun, args, on="tpu:v5p"))
    removed = Removed(LossHole(found.trace))
    if which is None:
        return lower(found.program, found.profile).block
    made = removed.without([removed.sites[which]])
    return lower(value_and_gradients(made), found.profile).block


def first_recomputed(kernels, which):
    """Return the number of the first kernel of the which-th layer's recomputation."""
    eqns = [op.context.remats[0] for op in kernels.ops if op.context.remats]
    eqn = list(dict.fromkeys(map(id, eqns)))[-1 - which]
    return next(i for i, op in enumerate(kernels.ops) if eqn in map(id, op.context.remats))


def test_a_change_moved_to_an_alike_layer_makes_the_kernels_without_that_one(chain):
    fun, args = chain(same_layers(10))
    base, without_4 = kernels_without(fun, args, None), kernels_without(fun, args, 4)
    found = difference(base, without_4)
    assert 1 <= len(found.stretches) <= 2
    here = first_recomputed(base, 4)
    for other in (3, 5, 6):
        moved = found.moved(here, first_recomputed(base, other))
        without_other = kernels_without(fun, args, other)
        assert are_alike(moved, without_other)
        assert not are_alike(moved, without_4)
    assert are_alike(base, base)
    assert not are_alike(base, without_4)


def test_a_change_is_not_moved_to_where_other_layers_are(chain):
    kinds = ["mixer"] * 12
    kinds[9] = "named"
    calls = [f"    x = jax.checkpoint({kind})(x, ws[{i}], m)" for i, kind in enumerate(kinds)]
    text = ["def loss(ws, x, m):", *calls, "    return jnp.sum(x)", "depth = 12"]
    fun, args = chain("\n".join([checkpoint_lines.LAYERS, *text]))
    base = kernels_without(fun, args, None)
    found = difference(base, kernels_without(fun, args, 4))
    here = first_recomputed(base, 4)
    assert found.moved(here, first_recomputed(base, 5)) is not None
    assert found.moved(here, first_recomputed(base, 8)) is None
    assert found.moved(here, first_recomputed(base, 9)) is None


@pytest.mark.parametrize(
    ("call", "is_alike"),
    [
        ("jax.checkpoint(mixer)(x, ws[{i}], m)", True),
        ("jax.checkpoint(mixer)(x, ws[{i}], m) * (2.0 + {i})", False),
        ("jax.checkpoint(mixer)(x, ws[min({i}, 6)], m)", False),
        ("jax.checkpoint(mixer)(x, ws[{i}][:, : 64 - {i}].sum() * ws[{i}], m)", False),
    ],
)
def test_alike_are_only_checkpoints_among_equal_eqns(chain, call, is_alike):
    fun, args = chain(same_layers(12, call))
    found = subject(Question(fun, args, on="tpu:v5p"))
    groups = alike.alike_checkpoints(LossHole(found.trace), Removed(LossHole(found.trace)).sites)
    assert (max(map(len, groups)) >= 6) == is_alike
