"""Plans that a compiler confirms, and what they learn where it says other than the estimate.

The compiler is mostly one that is given, whose figures are the estimate times a factor; it is held
against all variants of the plan's menus, tried one by one.
"""

import math
import random
import re
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.advice.compile.ahead_of_time import CompileSettings, program_as_written
from jaxresid.advice.compile.limited import LimitedCompiles
from jaxresid.advice.compile.rows import PolicyProgram
from jaxresid.advice.plan import confirmation, plan
from jaxresid.advice.plan.search.peaks import ESTIMATE, Peaks
from jaxresid.advice.plan.search.search import Search
from jaxresid.advice.plan.verification import in_process_check
from jaxresid.advice.timing.chips import chip_of
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import gc_paused
from jaxresid.results import Compiled
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes.cache import CompileCache, default_directory
from tests import plans

V5E = parse_place("tpu:v5e")
CPU = parse_place("cpu")
WIDTH, LAYERS = 64, 6


def body(x, p):
    h = jnp.sin(x @ p["a"])
    g = jnp.tanh(h @ p["b"])
    return x + g @ p["c"], None


def scanned(stacked, x):
    x, _ = jax.lax.scan(body, x, stacked)
    return jnp.sum(x**2)


def layer(x, p):
    h = jnp.sin(x @ p["a"])
    return x + (jnp.sin(h) * h) @ p["c"]


def unrolled(layers, x):
    for p in layers:
        x = layer(x, p)
    return jnp.sum(x**2)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def scanned_inputs(batch=1024):
    shapes = {"a": (WIDTH, 256), "b": (256, 256), "c": (256, WIDTH)}
    return {name: f32(LAYERS, *shape) for name, shape in shapes.items()}, f32(batch, WIDTH)


def unrolled_inputs(batch=1024):
    return [{"a": f32(WIDTH, 256), "c": f32(256, WIDTH)} for _ in range(4)], f32(batch, WIDTH)


@dataclass
class GivenCompiler:
    """In place of `LimitedCompiles`: says the estimate times a factor for each variant's name.

    Attributes:
      factor: returns the factor; None for a variant that the compiler fails at.
      cublas: returns that for the program with cuBLAS's matmuls; None where they were not asked
        about, and a word for why they could not be.
      ends_after: how many variants there is time for.
    """

    factor: object
    cublas: object = lambda name: None
    left_s: float = 60.0
    ends_after: float = math.inf
    place: object = V5E
    settings: object = CompileSettings()
    asked: list = field(default_factory=list)
    budgets: set = field(default_factory=set)
    unconfirmed: tuple = ()

    @property
    def count(self):
        return len(self.asked)

    def spend(self, seconds):
        self.left_s = max(self.left_s - seconds, 0.0)

    def compiled(self, programs, budget_nbytes=None):
        self.budgets.add(budget_nbytes)
        return tuple(map(self._row, programs))

    def _row(self, program):
        assert program.policy not in self.asked, "asked twice"
        if self.count >= self.ends_after:
            self.unconfirmed += (program.policy,)
            return None
        self.asked.append(program.policy)
        factor = self.factor(program.policy)
        if factor is None:
            self.unconfirmed += (program.policy,)
            return Compiled(self.place.text, program.policy, error="it crashed")
        nbytes = int(program.estimate_nbytes(self.place) * factor)
        row = Compiled(self.place.text, program.policy, peak_nbytes=nbytes)
        other = self.cublas(program.policy)
        if isinstance(other, str):
            return replace(row, cublas_error=other)
        if other is not None:
            nbytes = int(program.estimate_nbytes(self.place) * other)
            return replace(row, cublas_peak_nbytes=nbytes)
        return row


@pytest.fixture(
    scope="module", params=[scanned, pytest.param(unrolled, marks=pytest.mark.integration)]
)
def found(request):
    inputs = scanned_inputs() if request.param is scanned else unrolled_inputs()
    return subject(Question(request.param, inputs, mode="loss", on=V5E))


@pytest.fixture(scope="module")
def loop():
    return subject(Question(scanned, scanned_inputs(), mode="loss", on=V5E))


def planning_of(found, budget, compiles=None):
    by = plan.Terms(budget, "recompute", chip_of(found.place), compiles=compiles)
    return plan.Planning(found, by, lambda text: None)


def asked(found, budget, compiler):
    """The plan, and the true peak and the cost of each variant of the menus, by name."""
    with gc_paused(), found.tracing():
        planning = planning_of(found, budget, compiler)
        made, _ = planning.planned(None)
        for menu in planning.search.menus:
            for option in menu.options:
                planning.search.trial({menu.place: option})
        known = {confirmation.description(t.combination): t for t in planning.search.tried}
    return made, planning, known


def range_of(found):
    """The estimated peak without any checkpoint, and the lowest."""
    low = plans.planned(found, 1)
    return low.plain_nbytes, low.lowest_nbytes


def noise(seed, common, own):
    """Factors of all variants and, besides, of each."""
    shared = random.Random(seed).gauss(0, common)

    def factor(name):
        # Not the line that a function of this module is at.
        key = f"{seed} {re.sub(r':[0-9]+', '', name)}"
        return math.exp(shared + random.Random(key).gauss(0, own))

    return factor


@pytest.mark.integration
@pytest.mark.parametrize("factor", [1.3, 0.75])
def test_what_all_variants_share_is_learnt_from_the_first(found, factor):
    high, low = range_of(found)
    budget = int((low + (high - low) * 0.4) * factor)
    compiler = GivenCompiler(lambda name: factor)
    made, planning, known = asked(found, budget, compiler)
    best = min(t.cost for t in known.values() if int(t.peak * factor) <= budget)
    assert made.answer == "fits" and made.confirmed and made.peak_nbytes <= budget
    assert made.recompute_flops <= best + 0.01 * planning.plain.cost.flops
    assert made.compiles == compiler.count <= 4
    assert made.estimate_nbytes == pytest.approx(made.peak_nbytes / factor, abs=2)
    assert (made.low_nbytes, made.high_nbytes) == (None, None)


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(6))
def test_nothing_that_the_compiler_rejects_is_said_to_fit(found, seed):
    high, low = range_of(found)
    factor = noise(seed, 0.15, 0.06)
    for share in (0.2, 0.6):
        budget = int(low + (high - low) * share)
        compiler = GivenCompiler(factor)
        made, planning, known = asked(found, budget, compiler)
        peaks = {name: int(t.peak * factor(name)) for name, t in known.items()}
        fitting = [known[name] for name, peak in peaks.items() if peak <= budget]
        assert made.confirmed and made.compiles <= confirmation.MOST_COMPILES
        assert made.fits == (made.peak_nbytes <= budget)
        assert made.peak_nbytes in {peaks[name] for name in compiler.asked}
        if made.fits:
            asked_fitting = [known[n] for n in compiler.asked if peaks[n] <= budget]
            cheapest = min(t.cost for t in asked_fitting)
            assert made.recompute_flops <= cheapest + planning.objective.slack
        else:
            assert made.peak_nbytes == min(peaks[name] for name in compiler.asked)
            assert not fitting or made.compiles == confirmation.MOST_COMPILES


@pytest.mark.integration
def test_what_fits_fits_with_cublas_matmuls_too(loop):
    high, low = range_of(loop)
    budget = int(low + (high - low) * 0.6)
    alone, _, _ = asked(loop, budget, GivenCompiler(lambda name: 1.0))
    budget = int(1.1 * alone.peak_nbytes)
    compiler = GivenCompiler(lambda name: 1.0, lambda name: 1.25)
    made, _, _ = asked(loop, budget, compiler)
    assert compiler.budgets == {budget}
    assert made.fits and made.confirmed and made.peak_nbytes <= budget
    assert made.peak_nbytes == pytest.approx(1.25 * made.triton_peak_nbytes, abs=2)
    assert made.triton_peak_nbytes < alone.peak_nbytes  # what fits with Triton's alone
    assert made.recompute_flops > alone.recompute_flops
    assert alone.triton_peak_nbytes is None
    lower = GivenCompiler(lambda name: 1.0, lambda name: 0.75)
    same, _, _ = asked(loop, budget, lower)
    assert (same.peak_nbytes, same.triton_peak_nbytes) == (alone.peak_nbytes, None)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("left_s", "said"), [(60.0, "it crashed"), (0.0, "the time for compiling")]
)
def test_what_was_not_compiled_with_cublas_matmuls_is_not_confirmed(loop, left_s, said):
    high, low = range_of(loop)
    compiler = GivenCompiler(lambda name: 1.0, lambda name: "it crashed", left_s=left_s)
    made, _, _ = asked(loop, (high + low) // 2, compiler)
    assert not made.confirmed and made.by_xla == ()
    assert sum(said in warning for warning in made.warnings) == 1


@pytest.mark.integration
def test_what_nothing_fits_says_the_lowest_that_xla_confirmed(loop):
    _, low = range_of(loop)
    compiler = GivenCompiler(lambda name: 1.5)
    made, _, _ = asked(loop, low, compiler)
    assert (made.answer, made.is_within, made.confirmed) == ("does not fit", False, True)
    assert made.peak_nbytes == made.lowest_nbytes == int(low * 1.5)
    assert set(made.by_xla) >= {"peak_nbytes", "lowest_nbytes"}
    assert made.compiles == 1  # the others are higher still


@pytest.mark.integration
def test_without_time_the_answer_is_the_estimates(loop):
    high, low = range_of(loop)
    budget = (high + low) // 2
    compiler = GivenCompiler(lambda name: 1.0, ends_after=0)
    made, _, _ = asked(loop, budget, compiler)
    as_estimated = plans.planned(loop, budget)
    assert (made.confirmed, made.compiles, made.by_xla) == (False, 0, ())
    assert made.answer == as_estimated.answer and made.sites == as_estimated.sites
    assert made.peak_nbytes == made.estimate_nbytes == as_estimated.peak_nbytes
    (late,) = made.unconfirmed
    assert any("the time for compiling was up" in w and late in w for w in made.warnings)


class Slow(GivenCompiler):
    """One whose first compile leaves some seconds."""

    leaves_s = 0.0

    def compiled(self, programs, budget_nbytes=None):
        rows = super().compiled(programs, budget_nbytes)
        self.left_s = self.leaves_s
        return rows


@pytest.mark.integration
@pytest.mark.parametrize("leaves_s", [0.0, 1e-6])
@pytest.mark.parametrize("factor", [1.4, 0.5])
def test_searches_between_compiles_take_of_their_time(loop, leaves_s, factor, monkeypatch):
    high, low = range_of(loop)
    searches = []
    run = Search.run
    monkeypatch.setattr(Search, "run", lambda self: (searches.append(self), run(self)))
    compiler = Slow(lambda name: factor)
    compiler.leaves_s = leaves_s
    before = plans.planned(loop, (high + low) // 2).tried
    made, _, _ = asked(loop, (high + low) // 2, compiler)
    assert made.compiles == 1
    assert made.tried <= before
    assert len(searches) == (3 if leaves_s else 2)  # the first is that of `before`
    assert made.confirmed is (factor < 1)  # what was compiled counts
    assert [w for w in made.warnings if "time for compiling" in w] == [
        "the time for compiling was up before tpu:v5e was asked about all that may be cheaper;"
        " --compile-time gives more"
    ]


@pytest.mark.integration
def test_what_was_rejected_is_not_proposed_where_time_is_up(loop):
    high, low = range_of(loop)
    budget = plans.planned(loop, (high + low) // 2).peak_nbytes
    compiler = GivenCompiler(lambda name: 1.3, ends_after=1)
    made, _, known = asked(loop, budget, compiler)
    (rejected,) = compiler.asked
    assert known[rejected].peak <= budget < known[rejected].peak * 1.3
    assert not made.confirmed and made.peak_nbytes < known[rejected].peak
    assert made.unconfirmed


@pytest.mark.integration
def test_what_fits_stays_where_time_is_up(loop):
    high, low = range_of(loop)
    compiler = GivenCompiler(lambda name: 0.7, ends_after=1)
    made, _, _ = asked(loop, (high + low) // 2, compiler)
    assert made.fits and made.confirmed and made.compiles == 1 and made.unconfirmed


@pytest.mark.integration
def test_a_compiler_that_fails_decides_nothing(loop):
    high, low = range_of(loop)
    budget = (high + low) // 2
    compiler = GivenCompiler(lambda name: None)
    made, _, _ = asked(loop, budget, compiler)
    assert not made.confirmed and compiler.count == 1
    assert "not compiled for tpu:v5e: it crashed" in made.warnings


@pytest.mark.integration
def test_a_peak_is_what_others_that_are_alike_tell(loop):
    high, low = range_of(loop)
    with gc_paused(), loop.tracing():
        planning = planning_of(loop, (high + low) // 2)
        planning.search.run()
    tried = sorted(planning.search.tried, key=lambda t: t.peak)
    lowest, near, highest = tried[0], tried[1], tried[-1]
    peaks = Peaks(ESTIMATE)
    assert peaks.of(near) == near.peak
    peaks.learn(lowest, int(lowest.peak * 1.2))
    assert peaks.of(lowest) == int(lowest.peak * 1.2)
    factors = [peaks.of(t) / t.peak for t in (near, highest)]
    assert 1.2 > factors[0] > factors[1] > 1.0
    assert peaks.chance(lowest, lowest.peak) == 0
    assert peaks.chance(near, int(near.peak * 1.05)) < peaks.chance(near, int(near.peak * 1.4))
    before = peaks.of(near)
    peaks.caution = 1.0
    assert peaks.of(near) > before and peaks.of(lowest) == int(lowest.peak * 1.2)


def test_descriptions_say_what_is_done(loop):
    with gc_paused(), loop.tracing():
        planning = planning_of(loop, 1)
        planning.search.run()
    names = [confirmation.description(t.combination) for t in planning.search.tried]
    assert names[0] == "no checkpoint" and len(set(names)) == len(names)
    assert any(name.endswith("(body): dots_saveable") for name in names)


# A compiler that is there.


@pytest.mark.integration
def test_on_a_cpu_all_figures_are_those_of_its_compiler():
    """BudgetCheck against compiling every variant of the menus."""
    found = subject(Question(scanned, scanned_inputs(256), mode="loss", on=CPU))
    settings = CompileSettings(workers=1, cache=CompileCache(default_directory()))
    with gc_paused(), found.tracing():
        planning = planning_of(found, 1)
        planning.search.run()
        tried = planning.search.tried
        programs = [
            PolicyProgram(str(i), t.variant.trace, t.variant.program) for i, t in enumerate(tried)
        ]
    rows = LimitedCompiles(CPU, settings).compiled(programs)
    peaks = {id(t): row.peak_nbytes for t, row in zip(tried, rows, strict=True)}
    lowest, highest = min(peaks.values()), max(peaks.values())
    assert lowest < highest
    for budget in (lowest - 1, lowest, (lowest + highest) // 2, highest):
        best = min((t.cost for t in tried if peaks[id(t)] <= budget), default=None)
        compiles = confirmation.compiles_for(CPU, settings)
        made, _ = plans.drafted(found, budget, compiles=compiles)
        assert made.confirmed and made.estimate_nbytes is None and len(made.by_xla) == 4
        assert made.compiles <= confirmation.MOST_COMPILES_WITHOUT_ESTIMATE
        assert made.fits == (best is not None) == (made.peak_nbytes <= budget)
        assert made.plain_nbytes == peaks[id(tried[0])]
        if best is not None:
            assert made.recompute_flops <= best + 0.01 * planning.plain.cost.flops
        else:
            assert made.lowest_nbytes == lowest


SCANNED = """
import jax, jax.numpy as jnp

def body(x, p):
    h = jnp.sin(x @ p)
    return jnp.tanh(h @ p.T) * x, None

def loss(stacked, x):
    x, _ = jax.lax.scan(body, x, stacked)
    return jnp.sum(x**2)
"""
# Both loops go through one line, so that a checkpoint written there is in both.
SHARED_LINE = """
import jax, jax.numpy as jnp

def through(body, x, stacked):
    return jax.lax.scan(lambda x, p: (body(x, p), None), x, stacked)[0]

def layer(x, p):
    return jnp.tanh(jnp.sin(x @ p) @ p.T) * x

def group(x, stacked):
    return through(layer, x, stacked)

def loss(stacked, x):
    return jnp.sum(through(group, x, stacked) ** 2)
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "source", "layers"), [("scanned", SCANNED, (LAYERS,)), ("shared", SHARED_LINE, (4, 4))]
)
def test_the_figure_is_that_of_the_code_when_it_is_written(
    name, source, layers, tmp_path, monkeypatch
):
    """The variant is compiled, or the code, and the written code then needs as much."""
    import importlib

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    inputs = f32(*layers, 64, 256), f32(512, 64)
    (tmp_path / f"{name}_before.py").write_text(source)
    module = importlib.import_module(f"{name}_before")
    whole = jaxresid.plan(module.loss, budget="1GiB", on="cpu")(*inputs)
    assert whole.fits and whole.peak_nbytes == whole.plain_nbytes and not whole.code
    asked = Question(module.loss, inputs, on=CPU)
    found = subject(asked)
    compiles = confirmation.compiles_for(CPU, CompileSettings(workers=1))
    check = in_process_check(found, asked)
    made, edits = plans.drafted(found, whole.peak_nbytes * 2 // 3, check=check, compiles=compiles)
    assert made.fits and made.confirmed and made.verified and made.code
    (tmp_path / f"{name}_after.py").write_bytes(edits[0].new)
    written = importlib.import_module(f"{name}_after")
    found = subject(Question(written.loss, inputs, on=CPU))
    (row,) = LimitedCompiles(CPU, CompileSettings(workers=1)).compiled([program_as_written(found)])
    assert row.peak_nbytes == made.peak_nbytes


def test_a_cpu_without_time_has_no_answer():
    found = subject(Question(scanned, scanned_inputs(), mode="loss", on=CPU))
    compiles = confirmation.compiles_for(CPU, CompileSettings(workers=1), limit_s=0.0)
    with pytest.raises(InputsError, match=r"the time for compiling was up .* no checkpoint"):
        plans.drafted(found, 1 << 30, compiles=compiles)


def test_a_place_without_known_memory_needs_a_budget():
    with pytest.raises(InputsError, match="how much memory cpu has is not known"):
        jaxresid.plan(scanned, on="cpu")(*scanned_inputs())
    made = jaxresid.plan(scanned, on="tpu:v5e")(*scanned_inputs())
    assert made.budget_nbytes == V5E.memory_nbytes


def test_no_budget_is_above_what_xla_takes(loop):
    compiler = GivenCompiler(lambda name: 1.0)
    made, _ = plans.drafted(loop, 1 << 50, compiles=compiler)
    assert made.fits and made.budget_nbytes == V5E.memory_nbytes
    assert any("planned for 15.75 GiB" in warning for warning in made.warnings)
    assert plans.planned(loop, 1 << 50).budget_nbytes == 1 << 50


@pytest.fixture(autouse=True)
def any_compiler(monkeypatch):
    monkeypatch.setattr(plan, "why_unavailable", lambda place: None)


def test_a_compiler_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr(plan, "why_unavailable", lambda place: "no compiler here")
    with pytest.raises(InputsError, match="no compiler here"):
        jaxresid.plan(scanned, budget="1GiB", on="tpu:v5e", compile=True)(*scanned_inputs())
