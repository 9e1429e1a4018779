"""Plans: against brute force over the same choices, and against every policy of a comparison."""

import functools
import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.advice.plan.search.solver import ValueChoice, ValueProgram, combine_options
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.cost.jaxpr_cost import eqn_cost
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.candidates import saving
from jaxresid.inspector.variants.checkpoints import CheckpointVariants
from jaxresid.inspector.variants.choices import Choice, everywhere
from jaxresid.inspector.variants.naming import nameable
from jaxresid.inspector.variants.recompute import Graph, Step, graph
from tests.plans import planned
from tests.shared_variants import sharing_variants

# What a name in the code, or telling calls apart, has to be worth for `advice.plan`: a share
# of all FLOPs.
SLACK = 5e-4
WIDTH, HIDDEN, BATCH = 64, 256, 128


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def body(x, p):
    h = jnp.sin(x @ p["a"])
    g = jnp.tanh(h @ p["b"])
    return x + g @ p["c"], None


def scanned(stacked, x):
    x, _ = jax.lax.scan(body, x, stacked)
    return jnp.sum(x**2)


def scanned_inputs(layers=8):
    shapes = {"a": (WIDTH, HIDDEN), "b": (HIDDEN, HIDDEN), "c": (HIDDEN, WIDTH)}
    return {k: f32(layers, *s) for k, s in shapes.items()}, f32(BATCH, WIDTH)


def layer(x, p):
    h = jnp.sin(x @ p["a"])
    u = jnp.sin(h) * h
    return x + u @ p["c"]


def unrolled(layers, x):
    for p in layers:
        x = layer(x, p)
    return jnp.sum(x**2)


def checkpointed(layers, x):
    for p in layers:
        x = jax.checkpoint(layer)(x, p)
    return jnp.sum(x**2)


def unrolled_inputs(layers):
    return [{"a": f32(WIDTH, HIDDEN), "c": f32(HIDDEN, WIDTH)} for _ in range(layers)], f32(
        BATCH, WIDTH
    )


def traced(fun, args, on=None):
    found = subject(Question(fun, args, mode="loss", on=on))
    return found, found.variants()


def traced_once(fun, args, on=None):
    """The same for many plans."""
    found = sharing_variants(subject(Question(fun, args, mode="loss", on=on)))
    return found, found.variants()


def place_of(variants, kind):
    return next(p for p in variants.places() if p.kind == kind)


def budgets(tried, count):
    """From just below the lowest peak to just above the highest."""
    low, high = min(t[0] for t in tried), max(t[0] for t in tried)
    return [low - 1] + [low + (high - low) * i // (count - 1) for i in range(count)]


def cheapest(tried, budget):
    return min((cost for peak, cost in tried if peak <= budget), default=None)


def by_name(variants, found, plain):
    """Peak and recomputed FLOPs of every subset of the values that a scan's body can name."""
    place = place_of(variants, "scan")
    expressions = list(
        dict.fromkeys(n.expression for n in nameable(variants.body(place), found.frames))
    )
    tried = [(plain.peak_nbytes, 0)]
    for size in range(len(expressions) + 1):
        for chosen in itertools.combinations(expressions, size):
            names = tuple((e, f"n{i}") for i, e in enumerate(chosen))
            policy = saving([n for _, n in names]).policy if names else None
            made = variants.variant({place: everywhere(place, Choice(policy, names))})
            tried.append((made.peak_nbytes, (made.cost - plain.cost).flops))
    return tried


@pytest.mark.integration
def test_values_of_a_scan_equal_brute_force():
    found, variants = traced_once(scanned, scanned_inputs(), on="tpu:v5p")
    plain = variants.variant({})
    tried = by_name(variants, found, plain)
    assert len(tried) == 2**6 + 1
    for budget in budgets(tried, 8):
        best, plan = cheapest(tried, budget), planned(found, budget)
        if best is None:
            continue
        assert plan.is_within
        assert plan.recompute_flops <= best + SLACK * plain.cost.flops
        assert plan.peak_nbytes <= budget


@pytest.mark.integration
@pytest.mark.parametrize("fun", [pytest.param(checkpointed, marks=pytest.mark.slow), unrolled])
def test_layers_equal_brute_force_over_which_are_checkpointed(fun):
    # By a TPU's rules peaks fall more evenly with what is kept than by a GPU's.
    found, variants = traced_once(fun, unrolled_inputs(5), on="tpu:v5p")
    place = place_of(variants, "call" if fun is unrolled else "checkpoint")
    plain = variants.variant({place: everywhere(place, None)})
    tried = []
    for policy in (None, jax.checkpoint_policies.dots_saveable):
        for bits in itertools.product((False, True), repeat=place.calls):
            made = variants.variant({place: tuple(Choice(policy) if b else None for b in bits)})
            tried.append((made.peak_nbytes, (made.cost - plain.cost).flops))
    for budget in budgets(tried, 7)[1:]:
        plan = planned(found, budget)
        assert plan.is_within
        # Twice: a plan leaves the last calls as they are, not the first one, which is worth up to
        # 0.02 % of these FLOPs.
        assert plan.recompute_flops <= cheapest(tried, budget) + 2 * SLACK * plain.cost.flops


@pytest.mark.slow
@pytest.mark.parametrize("layers", [16, 64])
def test_a_chain_of_identical_layers_checkpoints_as_few_as_fit(layers):
    """Of identical layers the known optimum is the fewest that make it fit."""
    found, variants = traced_once(checkpointed, unrolled_inputs(layers))
    place = place_of(variants, "checkpoint")
    plain = variants.variant({place: everywhere(place, None)})
    everything = variants.variant({})

    def first(count):
        made = (Choice(None),) * count + (None,) * (layers - count)
        return variants.variant({place: made})

    for share in (0.25, 0.6):
        budget = int(plain.peak_nbytes * (1 - share) + everything.peak_nbytes * share)
        low, high = 0, layers
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if first(middle).peak_nbytes <= budget else (middle, high)
        optimum = (first(high).cost - plain.cost).flops
        plan = planned(found, budget)
        assert plan.is_within
        assert plan.recompute_flops <= optimum + SLACK * plain.cost.flops


@pytest.mark.integration
def test_the_frontier_is_monotone_in_the_budget():
    found, variants = traced_once(scanned, scanned_inputs())
    plain = variants.variant({})
    place = place_of(variants, "scan")
    floor = variants.variant({place: everywhere(place, Choice(None))}).peak_nbytes
    plans = [planned(found, floor + (plain.peak_nbytes - floor) * i // 6) for i in range(7)]
    for tight, loose in itertools.pairwise(plans):
        assert tight.peak_nbytes <= loose.peak_nbytes
        # A budget more may buy a plan that is simpler to write for next to nothing.
        assert loose.recompute_flops <= tight.recompute_flops + SLACK * plain.cost.flops
    assert plans[-1].recompute_flops == 0


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (scanned, scanned_inputs()),
        (unrolled, unrolled_inputs(4)),
        (checkpointed, unrolled_inputs(4)),
    ],
)
def test_no_policy_of_a_comparison_is_cheaper_at_the_same_peak(fun, args):
    found, _ = traced_once(fun, args)
    for at in (None, "whole"):
        rows = jaxresid.compare(fun, at=at, mode="loss")(*args).rows
        for row in rows:
            if row.error or row.host_nbytes:
                continue
            plan = planned(found, row.peak_nbytes)
            assert plan.is_within, row
            assert plan.recompute_flops <= row.recompute_flops + SLACK * _flops(plan), row


def _flops(plan):
    """Those without any checkpoint."""
    if not plan.recompute_flops:
        return 0
    return plan.recompute_flops / plan.recompute_fraction


@pytest.mark.integration
def test_the_promise_is_what_the_written_code_gives():
    """The plan applied by hand, to the code, as a user would write it."""
    lowest = jaxresid.plan(scanned, budget=1)(*scanned_inputs()).lowest_nbytes
    plans = (jaxresid.plan(scanned, budget=lowest + i * 2**18)(*scanned_inputs()) for i in range(8))
    plan = next(plan for plan in plans if plan.sites[0].parts[0].values)
    (site,) = plan.sites
    (part,) = site.parts
    names = {v.expression.code: v.name for v in part.values}

    def name(code, value):
        return jax.ad_checkpoint.checkpoint_name(value, names[code]) if code in names else value

    def written_body(x, p):
        h = name('jnp.sin(x @ p["a"])', jnp.sin(name('x @ p["a"]', x @ p["a"])))
        g = name('jnp.tanh(h @ p["b"])', jnp.tanh(name('h @ p["b"]', h @ p["b"])))
        return name('x + g @ p["c"]', x + name('g @ p["c"]', g @ p["c"])), None

    def written(stacked, x):
        policy = eval(f"jax.checkpoint_policies.{part.policy}")
        step = jax.checkpoint(written_body, policy=policy, prevent_cse=False)
        x, _ = jax.lax.scan(step, x, stacked)
        return jnp.sum(x**2)

    report = jaxresid.inspect(written, mode="loss")(*scanned_inputs())
    assert plan.peak_nbytes == report.peak.nbytes
    assert plan.kept_nbytes == report.totals.computed_nbytes
    assert plan.recompute_flops == report.cost.recompute.flops


@pytest.fixture
def measured(monkeypatch):
    """The variants of functions that were measured, each with its choices."""
    found = []

    def noting(self, choices, variant=CheckpointVariants.variant):
        made = variant(self, choices)
        found.append((self, choices, made))
        return made

    monkeypatch.setattr(CheckpointVariants, "variant", noting)
    return found


def by_effect(choices):
    """What choices make of a program, as a key; what saves by name has a policy of its own."""
    return frozenset(
        (place, tuple(c and (id(c.policy), c.names, c.segments) for c in made))
        for place, made in choices.items()
    )


@pytest.mark.integration
@pytest.mark.parametrize("budget", [1, 2 << 20])
def test_no_variant_is_measured_twice(measured, budget):
    found, _ = traced(checkpointed, unrolled_inputs(4), on="tpu:v5p")
    plan = planned(found, budget)
    seen = [(variants, by_effect(choices)) for variants, choices, _ in measured]
    assert len(seen) == len(set(seen)) and plan.tried > 1


def wide_layer(x, p):
    for a, b in p:
        x = x + jnp.sin(jnp.sin(x @ a) @ b)
    return x


def wide(layers, x):
    return jnp.sum(functools.reduce(jax.checkpoint(wide_layer), layers, x) ** 2)


@pytest.mark.integration
def test_where_nothing_fits_only_what_may_be_lowest_is_traced(measured, monkeypatch):
    layers = [[(f32(WIDTH, 4 * WIDTH), f32(4 * WIDTH, WIDTH))] * 2] * 12
    found, _ = traced(wide, (layers, f32(16 * BATCH, WIDTH)), on="tpu:v5p")
    search = "jaxresid.advice.plan.search.search"
    monkeypatch.setattr(f"{search}._SMALL", 0)  # as if of many ops
    monkeypatch.setattr(f"{search}._EXHAUSTIVE_LIMIT", 5)
    monkeypatch.setattr(f"{search}._NEIGHBOURS", 0)
    plan, count = planned(found, 1), len(measured)
    monkeypatch.setattr(f"{search}._ABOVE", float("inf"))
    every = planned(found, 1)
    assert replace(plan, tried=every.tried, choices=every.choices) == every
    assert plan.tried < every.tried and count < len(measured) - count


@pytest.mark.integration
def test_nothing_fits():
    plan = jaxresid.plan(scanned, budget="1KiB")(*scanned_inputs())
    assert not plan.is_within
    assert plan.peak_nbytes == plan.lowest_nbytes > plan.budget_nbytes
    assert plan.lowest_nbytes < plan.plain_nbytes


def test_what_fits_as_it_is_stays():
    plan = jaxresid.plan(scanned, budget="1TiB")(*scanned_inputs())
    assert plan.is_within
    assert plan.sites == ()
    assert plan.peak_nbytes == plan.plain_nbytes == plan.written_nbytes


@pytest.mark.integration
def test_a_checkpoint_that_is_not_needed_goes():
    plan = jaxresid.plan(checkpointed, budget="1TiB")(*unrolled_inputs(3))
    (site,) = plan.sites
    assert site.changed
    assert [part.checkpointed for part in site.parts] == [False]


@pytest.mark.integration
def test_some_calls_only_are_written_and_verified():
    """In a loop of Python's by the number of the round; the API verifies what it returns."""
    args = unrolled_inputs(4)
    _, variants = traced(checkpointed, args)
    place = place_of(variants, "checkpoint")
    plain = variants.variant({place: everywhere(place, None)})
    budget = (plain.peak_nbytes * 3 + variants.variant({}).peak_nbytes) // 4
    plan = jaxresid.plan(checkpointed, budget=budget, mode="loss")(*args)
    (site,) = plan.sites
    assert [part.checkpointed for part in site.parts] == [True, False]
    assert plan.verified
    assert plan.doubt is None
    count = site.parts[0].calls
    # Over several lines where one would be long.
    text = " ".join("\n".join(plan.code).split()).replace("( ", "(").replace(" )", ")")
    assert "for i, p in enumerate(layers):" in text
    assert "x = (jax.checkpoint(layer" in text
    assert f" if i < {count} else layer)(x, p)" in text


@pytest.mark.integration
def test_what_has_no_source_is_not_verified():
    space = {"jax": jax, "jnp": jnp}
    exec(  # as a REPL does
        "def typed(w, x):\n    for _ in range(3):\n        x = jnp.sin(jnp.tanh(x @ w))\n"
        "    return jnp.sum(x**2)\n",
        space,
    )
    lowest = jaxresid.plan(space["typed"], budget=1)(f32(8, 8), f32(512, 8))
    assert lowest.lowest_nbytes < lowest.written_nbytes
    plan = jaxresid.plan(space["typed"], budget=lowest.lowest_nbytes)(f32(8, 8), f32(512, 8))
    assert plan.is_within
    assert not plan.verified
    assert plan.doubt
    assert plan.code == ()
    assert plan.unwritten


def through(function, layers, x):
    for p in layers:
        x = function(x, p)
    return x


def passed_on(layers, x):
    return jnp.sum(through(layer, layers, jnp.sin(x)) ** 2)


@pytest.mark.integration
def test_the_lowest_is_shown_where_nothing_fits_even_if_it_is_written_by_hand():
    """Which function is called tells no line; of the whole function any policy is written."""
    plan = jaxresid.plan(passed_on, budget=1)(*unrolled_inputs(6))
    assert plan.unwritten and not plan.verified
    assert plan.peak_nbytes == plan.lowest_nbytes < plan.plain_nbytes


def switched(w, x, kind, train):
    for _ in range(3):
        x = jnp.sin(jnp.tanh(x @ w)) if kind["act"] == "sin" else x
    return jnp.sum(x**2) if train else jnp.sum(x)


def switched_flat(w, x, train):
    for _ in range(3):
        x = jnp.sin(jnp.tanh(x @ w))
    return jnp.sum(x**2) if train else jnp.sum(x)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fun", "static", "written"),
    [
        (switched_flat, (True,), "static_argnums=(2,)"),
        (switched, ({"act": "sin"}, True), "jax.checkpoint(lambda w, x: fun(w, x, kind, train)"),
    ],
)
def test_what_is_no_array_stays_out_of_the_checkpoint(fun, static, written):
    args = (f32(8, 8), f32(512, 8), *static)
    lowest = jaxresid.plan(fun, budget=1)(*args).lowest_nbytes
    plan = jaxresid.plan(fun, budget=lowest)(*args)
    assert plan.is_within
    assert plan.verified, plan.doubt
    assert any(written in block for block in plan.code)


@pytest.mark.integration
def test_offloading_reaches_below_the_lowest_peak():
    lowest = jaxresid.plan(scanned, budget="1KiB")(*scanned_inputs()).lowest_nbytes
    plan = jaxresid.plan(scanned, budget="1KiB", offload=True)(*scanned_inputs())
    assert plan.lowest_nbytes <= lowest
    fits = jaxresid.plan(scanned, budget=lowest, offload=True)(*scanned_inputs())
    assert fits.is_within


@pytest.mark.parametrize("budget", ["12 apples", "", "GiB", "-3MiB", 0, -1])
def test_a_budget_that_is_none(budget):
    with pytest.raises(InputsError, match="budget"):
        jaxresid.plan(scanned, budget=budget)(*scanned_inputs())


def test_the_integer_program_equals_brute_force():
    """The front of one body, over all subsets of what it can save."""
    found, variants = traced(scanned, scanned_inputs())
    made = graph(
        variants.body(place_of(variants, "scan")), found.frames, lambda e: eqn_cost(e).flops
    )
    program = ValueProgram(made)
    numbers = range(len(made.saveables))
    every = [
        program.choosing(frozenset(chosen), frozenset())
        for size in range(len(numbers) + 1)
        for chosen in itertools.combinations(numbers, size)
    ]
    front, complete = program.front(100)
    assert complete
    for limit in sorted({c.nbytes for c in every}):
        best = min(c.cost for c in every if c.nbytes <= limit)
        assert program.cheapest(limit).cost == pytest.approx(best, rel=1e-6)
    for choosing in front:
        assert not any(c.nbytes <= choosing.nbytes and c.cost < choosing.cost - 1 for c in every)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0, 3.0])
def test_offloading_under_a_window_equals_brute_force(share):
    """What the link moves while the body computes is free, by all subsets of values."""
    found, variants = traced(scanned, scanned_inputs())
    made = graph(
        variants.body(place_of(variants, "scan")), found.frames, lambda e: eqn_cost(e).flops
    )
    once = sum(s.cost for s, f in zip(made.steps, made.forward, strict=True) if f)
    numbers = range(len(made.saveables))
    each = once / sum(s.nbytes for s in made.saveables)

    def moving(nbytes):
        return each * nbytes

    program = ValueProgram(made, moving, share * once)
    every = []
    for kinds in itertools.product(("again", "save", "offload"), repeat=len(numbers)):
        saved, moved = (
            frozenset(c for c in numbers if kinds[c] == kind) for kind in ("save", "offload")
        )
        kept = [i for i, s in enumerate(made.steps) if s.saveable in saved | moved]
        transfers = sum(moving(made.saveables[c].nbytes) for c in moved)
        cost = made.cost(kept) + max(transfers - share * once, 0.0)
        every.append((sum(made.saveables[c].nbytes for c in saved), cost))
    for limit in sorted({nbytes for nbytes, _ in every}):
        best = min(cost for nbytes, cost in every if nbytes <= limit)
        assert program.cheapest(limit).cost == pytest.approx(best, rel=1e-6, abs=1e-6 * once)


@pytest.mark.integration
def test_the_graph_costs_what_jax_recomputes():
    """For every subset of the dots of a body, against differentiating it again."""
    found, variants = traced(scanned, scanned_inputs())
    place = place_of(variants, "scan")
    made = graph(variants.body(place), found.frames, lambda e: eqn_cost(e).matmul_flops)
    plain = variants.variant({})
    program = ValueProgram(made)
    for size in range(4):
        for chosen in itertools.combinations(range(len(made.saveables)), size):
            names = tuple((made.saveables[c].expression, f"n{c}") for c in chosen)
            policy = saving([n for _, n in names]).policy if names else None
            variant = variants.variant({place: everywhere(place, Choice(policy, names))})
            added = (variant.cost - plain.cost).matmul_flops
            assert program.choosing(frozenset(chosen), frozenset()).cost * place.trips == added
    # What the backward pass alone needs, 1 - tanh**2, runs once with a checkpoint and without.
    every = graph(variants.body(place), found.frames, lambda e: eqn_cost(e).flops)
    nothing = variants.variant({place: everywhere(place, Choice(None))})
    added = (nothing.cost - plain.cost).flops
    assert ValueProgram(every).choosing(frozenset(), frozenset()).cost * place.trips == added


def test_several_places_are_chosen_together():
    # 0 is to do without; only the two cheap ones together stay under the limit.
    costs = [[0, 5, 9], [0, 4, 20], [0, 1, 2]]
    weights = [[0, -5, -6], [0, -5, -9], [0, -1, -2]]
    for limit in (-1, -7, -10, -11, -17, -18):
        fitting = [
            (sum(c[i] for c, i in zip(costs, pick, strict=True)))
            for pick in itertools.product(range(3), repeat=3)
            if sum(w[i] for w, i in zip(weights, pick, strict=True)) <= limit
        ]
        picked = combine_options(costs, weights, limit, [])
        if not fitting:
            assert picked is None
            continue
        assert sum(c[i] for c, i in zip(costs, picked, strict=True)) == min(fitting)
    one = combine_options([[0, 1], [0, 1]], [[0, -1], [0, -1]], -2, [(0, 1)])
    assert one is None


def stages(ps, x):
    """Three loops whose bodies keep, and recompute, differently much for each byte."""
    a, b, c = ps
    x, _ = jax.lax.scan(lambda x, p: (x + jnp.sin(jnp.sin(x @ p) @ p.T), None), x, a)
    x, _ = jax.lax.scan(lambda x, p: (x + jnp.tanh(jnp.sin(x) @ p), None), x, b)
    x, _ = jax.lax.scan(lambda x, p: (jnp.sin(jnp.cos(jnp.sin(x) * p)), None), x, c)
    return jnp.sum(x**2)


@pytest.mark.integration
def test_several_stages_equal_brute_force():
    shapes = f32(6, WIDTH, HIDDEN), f32(5, WIDTH, WIDTH), f32(7, WIDTH)
    found, variants = traced_once(stages, (shapes, f32(BATCH, WIDTH)), on="tpu:v5p")
    scans = [p for p in variants.places() if p.kind == "scan"]
    assert len(scans) == 3
    options = (None, Choice(None), Choice(jax.checkpoint_policies.dots_saveable))
    plain, tried = variants.variant({}), []
    for picked in itertools.product(options, repeat=3):
        made = variants.variant({p: (c,) for p, c in zip(scans, picked, strict=True) if c})
        tried.append((made.peak_nbytes, (made.cost - plain.cost).flops))
    for budget in budgets(tried, 5)[1:]:
        plan = planned(found, budget)
        assert plan.is_within
        assert plan.recompute_flops <= cheapest(tried, budget) + SLACK * plain.cost.flops


@pytest.mark.integration
def test_a_step_is_planned_as_its_loss_is():
    def step(stacked, x):
        gradients = jax.grad(scanned)(stacked, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, stacked, gradients)

    args = scanned_inputs()
    found = subject(Question(step, args, mode="program"))
    variants = found.variants()
    plain = variants.variant({})
    place = place_of(variants, "scan")
    nothing = variants.variant({place: everywhere(place, Choice(None))})
    for share in (0.1, 0.7):
        budget = int(nothing.peak_nbytes + share * (plain.peak_nbytes - nothing.peak_nbytes))
        plan = planned(found, budget)
        assert plan.is_within
        assert plan.peak_nbytes <= budget
        assert 0 < plan.recompute_flops <= (nothing.cost - plain.cost).flops
    assert plan.recompute_flops < (nothing.cost - plain.cost).flops  # with most of it to spare


@pytest.mark.integration
def test_a_body_that_cannot_be_looked_into_is_said(monkeypatch):
    def failing(*_):
        raise TypeError("no derivative")

    monkeypatch.setattr("jaxresid.advice.plan.search.menus.graph", failing)
    lowest = jaxresid.plan(scanned, budget=1)(*scanned_inputs()).lowest_nbytes
    plan = jaxresid.plan(scanned, budget=lowest)(*scanned_inputs())
    assert plan.is_within
    assert not plan.proven
    assert [w for w in plan.warnings if "only JAX's policies were tried" in w]


def test_plans_are_values():
    plan = jaxresid.plan(scanned, budget="1TiB")(*scanned_inputs())
    assert replace(plan, tried=0) != plan


# --- places without anything to choose --------------------------------------------------------


def identity(x):
    return jnp.sum(jnp.sin(jax.checkpoint(lambda x: x)(x)))


def constant(x):
    return jnp.sum(x) * jax.checkpoint(lambda x: 2.0)(x)


def idle_scan(x):
    y, z = jax.lax.scan(jax.checkpoint(lambda c, _: (c, c)), x, None, length=5)
    return jnp.sum(jnp.sin(y) * z)


@pytest.mark.integration
@pytest.mark.parametrize("fun", [identity, constant, idle_scan])
def test_a_body_without_eqns_has_one_choice(fun):
    found, _ = traced(fun, (f32(64, 64),))
    least = min(planned(found, budget).peak_nbytes for budget in (1, 1 << 30))
    plan = planned(found, least)
    assert plan.is_within


def test_the_program_of_nothing():
    empty = Graph((), (), (), ())
    nothing = ValueChoice(frozenset(), frozenset(), 0, 0, 0.0)
    assert ValueProgram(empty).front(8) == ((nothing,), True)
    # Something runs, and nothing is needed of it.
    idle = Graph((), (Step(None, 3.0, (), None, 4),), (), (True,))
    assert ValueProgram(idle).front(8) == ((nothing,), True)
    assert combine_options([], [], 1.0, []) == ()
    assert combine_options([], [], -1.0, []) is None
