"""Plans over batch sizes, microbatches and meshes: against every combination, traced one by one."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxresid
from jaxresid.advice.compile.ahead_of_time import CompileSettings
from jaxresid.advice.plan.joint.configurations import Configurations, Grid
from jaxresid.advice.plan.joint.joint import jointly_drafted
from jaxresid.advice.plan.joint.microbatches import in_microbatches, over_microbatches
from jaxresid.advice.plan.joint.search import AS_GOOD, JointSearch
from jaxresid.advice.plan.plan import Planning, terms
from jaxresid.advice.plan.search import objective
from jaxresid.advice.plan.verification import UnverifiedError
from jaxresid.advice.timing.chips import chip_of
from jaxresid.advice.timing.roofline import seconds
from jaxresid.base.errors import InputsError
from jaxresid.cli.main import run
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.choices import Choice, everywhere
from jaxresid.results import Compiled
from jaxresid.xla.places import parse_place
from tests.schemas import validate

ON = "tpu:v5e"
WIDTH, LAYERS = 128, 3
BATCHES, COUNTS = (8, 16, 32), (1, 2, 4)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layer(x, w):
    return x + jnp.tanh(jnp.sin(x @ w["in"]) @ w["out"]), None


def loss(params, x):
    x, _ = jax.lax.scan(layer, x, params)
    return jnp.mean(x**2)


def inputs(batch, layers=LAYERS):
    params = {"in": f32(layers, WIDTH, 2 * WIDTH), "out": f32(layers, 2 * WIDTH, WIDTH)}
    return params, f32(batch, 64, WIDTH)


def question(batch, fun=loss):
    return Question(fun, inputs(batch), argnums=0, mode="loss", on=ON)


def searched(budget, aim, grid=None, fun=loss):
    grid = grid or Grid(BATCHES, COUNTS)
    found = Configurations(grid, lambda batch, mesh: question(batch, fun))
    return jointly_drafted(found, parse_place(ON), budget, aim=aim)[0]


class Everything:
    """Every choice of a policy, or of values, at every batch size and number of microbatches."""

    def __init__(self, aim):
        self.rows = []
        for batch, count in itertools.product(BATCHES, COUNTS):
            found = in_microbatches(subject(question(batch)), count)
            planning = Planning(found, 1, chip_of(found.place), False, lambda _: None, aim)
            menus = planning.menus.all()
            for menu in menus:
                for option in menu.options:
                    self._add(planning, batch, count, menu.place, option)

    def _add(self, planning, batch, count, place, option):
        made = planning.variants.variant({place: everywhere(place, option.choice)})
        extra = (made.cost.flops - planning.plain.cost.flops) / planning.plain.cost.flops
        each = seconds(made.lowered, planning.chip).total / batch
        self.rows.append((made.peak_nbytes, extra, each, batch, count))

    def best(self, budget, aim):
        """Return the least of what is minimised, of what fits."""
        at = {"recompute": 1, "throughput": 2, "memory": 0}[aim]
        return min((row[at] for row in self.rows if row[0] <= budget), default=None)


@pytest.fixture(scope="module")
def everything():
    found = {aim: Everything(aim) for aim in ("recompute", "throughput")}
    return {**found, "memory": found["recompute"]}


def achieved(plan):
    batch = plan.selection.configuration.batch
    return {
        "recompute": plan.recompute_fraction,
        "throughput": plan.seconds / batch,
        "memory": plan.peak_nbytes,
    }[plan.aim]


@pytest.mark.integration
@pytest.mark.parametrize("aim", ["recompute", "throughput", "memory"])
def test_the_joint_choice_is_that_of_trying_everything(everything, aim):
    peaks = sorted(row[0] for row in everything[aim].rows)
    for share in (0.02, 0.2, 0.5):
        budget = peaks[int(share * len(peaks))]
        plan = searched(budget, aim)
        assert plan.is_within
        least = everything[aim].best(budget, aim)
        # Segments of the loop may do better than what is enumerated.
        assert achieved(plan) <= least * (1 + AS_GOOD) + 1e-12
        if not any(part.segments for site in plan.sites for part in site.parts):
            assert achieved(plan) >= least * (1 - AS_GOOD) - 1e-12


@pytest.mark.integration
def test_more_budget_is_never_worse(everything):
    peaks = sorted(row[0] for row in everything["throughput"].rows)
    for aim in ("throughput", "recompute"):
        before = float("inf")
        for share in (0.02, 0.3, 0.9):
            plan = searched(peaks[int(share * len(peaks))], aim)
            assert achieved(plan) <= before * (1 + AS_GOOD)
            before = achieved(plan)


@pytest.mark.integration
def test_what_follows_and_what_is_skipped_is_not_searched():
    one = searched(10**9, "throughput", Grid((8, 16), (1, 2)))
    assert (one.selection.searched, one.selection.followed, one.selection.skipped) == (3, 1, 0)
    # 16 in 1 is 8 in 1's double; 16 in 2 has the microbatches of 8 in 1.
    none = searched(10**6, "throughput", Grid((8, 16), (1, 2)))
    assert not none.is_within
    made = none.selection
    # 16 in 2 and in 1 are larger than 8 in 2 and in 1.
    assert (made.searched, made.followed, made.skipped) == (2, 0, 2)
    reasons = [each.reason for each in made.beaten]
    assert all(reason.startswith(("does not fit by", "not traced: ")) for reason in reasons)


@pytest.mark.integration
def test_what_does_not_fit_with_more_microbatches_is_searched():
    plain = [
        in_microbatches(subject(question(8 * count)), count).variants().variant({}).peak_nbytes
        for count in (1, 4)
    ]
    assert plain[0] < plain[1]
    by = terms(parse_place(ON), sum(plain) // 2)
    found = Configurations(Grid((8, 32), (1, 4)), lambda batch, mesh: question(batch))
    search = JointSearch(found, by, False, lambda _: None)
    search.run()
    made = {(s.configuration.batch, s.configuration.microbatches): s for s in search.solved}
    assert made[8, 1].best.cost == 0
    assert made[32, 4].is_searched
    for solved in made.values():
        assert solved.best is None or solved.best.peak <= by.budget_nbytes


@pytest.mark.integration
@pytest.mark.parametrize(("on", "is_checked"), [("gpu:h100", True), ("tpu:v5e", False)])
def test_a_difference_within_the_interval_of_the_time_is_none(on, is_checked):
    def ask(batch, mesh):
        return replace(question(batch), on=parse_place(on))

    found = Configurations(Grid((24, 28, 32)), ask)
    plan = jointly_drafted(found, parse_place(on), 10**9, aim="throughput")[0]
    assert (plan.time_basis is not None) == is_checked
    reasons = [each.reason for each in plan.selection.beaten]
    slower = [float(re.search(r"([\d.]+)% slower", reason)[1]) / 100 for reason in reasons]
    for share, reason in zip(slower, reasons, strict=True):
        is_none = is_checked and 1 + share < plan.time_basis.factor
        assert reason.startswith("about as fast") == is_none
        assert "by the estimate" in reason


@pytest.mark.integration
def test_the_front_is_of_plans_that_no_other_beats():
    plan = searched(10**9, "throughput", Grid((8, 16), (1, 2)))
    front = plan.selection.front
    assert sum(row.chosen for row in front) == 1
    ordinary = [row for row in front if not row.chosen]
    for one, other in itertools.combinations(ordinary, 2):
        assert one.peak_nbytes < other.peak_nbytes
        assert one.items_per_s < other.items_per_s
    (chosen,) = [row for row in front if row.chosen]
    assert chosen.items_per_s == pytest.approx(chosen.configuration.batch / plan.seconds)
    assert chosen.peak_nbytes == plan.peak_nbytes


@pytest.mark.integration
def test_the_time_is_estimated_of_the_front_alone(monkeypatch):
    timed = []

    def counting(lowered, chip, seconds=objective.seconds):
        timed.append(lowered)
        return seconds(lowered, chip)

    monkeypatch.setattr(objective, "seconds", counting)
    plan = searched(1, "recompute", Grid((16,)))
    assert len(timed) <= len(plan.selection.front) + 2 < plan.tried  # and no, and all checkpoints


def test_a_variant_over_microbatches_is_the_program_written_by_hand():
    """Its peak and its FLOPs are those of a scan over `jax.value_and_grad`."""

    def by_hand(params, x):
        def add(total, part):
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(params, part)), None

        shapes = jax.eval_shape(jax.value_and_grad(loss), params, x)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        total, _ = jax.lax.scan(add, zeros, x.reshape(4, 8, *x.shape[1:]))
        return total

    made = in_microbatches(subject(question(32)), 4)
    variant = made.variants().variant({})
    written = subject(Question(by_hand, inputs(32), mode="program", on=ON)).variants().variant({})
    assert variant.peak_nbytes == pytest.approx(written.peak_nbytes, rel=0.01)
    assert variant.cost.flops == pytest.approx(written.cost.flops, rel=0.01)
    # As the microbatches of another batch, which share what was traced.
    shared = over_microbatches(subject(question(8)), 4).variants().variant({})
    assert shared.peak_nbytes == variant.peak_nbytes


def casting(params, x):
    return loss(jax.tree.map(lambda p: p.astype(jnp.float32), params), x.astype(jnp.float32))


@pytest.mark.integration
@pytest.mark.parametrize(("batch", "name"), [(8, "params"), (32, "x")])
def test_what_else_lowers_a_plan_in_microbatches_is_worth_what_that_program_is(batch, name):
    """The bigger of the parameters and the whole batch, of which a microbatch has a quarter."""
    plan = searched(1, "recompute", Grid((batch,), (4,)), casting)
    (site,) = plan.sites
    assert site.kind == "scan" and site.parts[0].policy is None
    found = {relief.kind: relief for relief in plan.floor.reliefs}
    # How many microbatches, and what mesh, is chosen in the search.
    assert found.keys() <= {"offload", "dtype"}
    params, x = inputs(batch)
    half = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16)
    args = (params, half(x)) if name == "x" else (jax.tree.map(half, params), x)
    narrow = subject(Question(casting, args, argnums=0, mode="loss", on=ON))
    variants = in_microbatches(narrow, 4).variants()
    (place,) = [p for p in variants.places() if p.kind == "scan"]
    assert found["dtype"].change == f"{name} in bfloat16 in place of float32"
    by_hand = variants.variant({place: everywhere(place, Choice())})
    assert found["dtype"].peak_nbytes == by_hand.peak_nbytes < plan.lowest_nbytes


@pytest.mark.integration
def test_the_code_for_microbatches_gives_the_gradients():
    plan = searched(10**9, "throughput", Grid((32,), (4,)))
    *_, code = plan.selection.to_set
    key = jax.random.key(0)
    given = jax.tree.map(lambda s: jax.random.normal(key, s.shape) / 8, inputs(32))
    scope = {"jax": jax, "jnp": jnp, "loss": loss}
    exec(code, scope)
    found = scope["value_and_gradients"](*given)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6),
        found,
        jax.value_and_grad(loss)(*given),
    )


@pytest.mark.integration
def test_the_lowest_peak_may_be_asked_for():
    grid = Grid((16,))
    least, cheap = searched(10**9, "memory", grid), searched(10**9, "recompute", grid)
    assert least.peak_nbytes == least.lowest_nbytes < cheap.peak_nbytes
    assert least.fits
    assert cheap.recompute_flops == 0 < least.recompute_flops


@pytest.mark.integration
def test_from_python():
    asked = jaxresid.plan(
        loss, budget="20MiB", batches=[8, 16], microbatches=range(1, 5), argnums=0, on=ON
    )
    plan = asked(inputs)
    assert plan.selection.configuration.batch in (8, 16)
    validate(json.loads(plan.to_json()), "plan")
    with pytest.raises(InputsError, match="with batches, the second call takes one function"):
        asked(*inputs(8))
    with pytest.raises(InputsError, match="minimize and maximize cannot be combined"):
        jaxresid.plan(loss, minimize="time", maximize="throughput")
    with pytest.raises(InputsError, match="minimize must be one of recompute, time, memory"):
        jaxresid.plan(loss, minimize="tyme")
    with pytest.raises(InputsError, match="microbatches must be whole numbers"):
        jaxresid.plan(loss, microbatches=0)


def sharded_inputs(mesh):
    params, x = inputs(64)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    return params, jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=split)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("on", "said"),
    [
        ("gpu:h100:8", "at 450 GB/s. That"),
        ("gpu:h100:2x8", "at 450 GB/s, and what goes to other hosts at 50 GB/s. That"),
        ("gpu:a100-80:2x8", "no rate of the links between hosts is known for NVIDIA A100"),
        ("tpu:v4:2x2x2", "no rate of the links between them is known for Google TPU v4"),
    ],
)
def test_what_the_time_of_a_mesh_counts_is_said(on, said):
    mesh = jax.sharding.AbstractMesh((parse_place(on).devices,), ("data",))
    plan = jaxresid.plan(loss, budget="1GiB", argnums=0, on=on)(*sharded_inputs(mesh))
    assert any(said in " ".join(warning.split()) for warning in plan.warnings)


@pytest.mark.integration
def test_several_meshes_from_python():
    """Of meshes of the same axes the one that splits more has the lower peak, and more to send."""
    meshes = [jax.sharding.AbstractMesh((n,), ("data",)) for n in (2, 8)]
    asked = jaxresid.plan(
        loss, budget="1GiB", meshes=meshes, minimize="memory", argnums=0, on="tpu:v5e:2x4"
    )
    plan = asked(sharded_inputs)
    assert plan.selection.configuration.mesh == "data=8"
    alone = jaxresid.plan(loss, budget="1GiB", minimize="memory", argnums=0, on="tpu:v5e:2x4")(
        *sharded_inputs(meshes[1])
    )
    assert plan.peak_nbytes == alone.peak_nbytes
    (other,) = plan.selection.beaten
    assert other.configuration.mesh == "data=2" and "higher" in other.reason
    assert any("devices exchange" in warning for warning in plan.warnings)
    with pytest.raises(InputsError, match="with meshes, the second call takes one function, mesh"):
        asked(*sharded_inputs(meshes[0]))
    for given, said in (([], "at least one"), ([3], "meshes of JAX"), (meshes[:1] * 2, "once")):
        with pytest.raises(InputsError, match=said):
            jaxresid.plan(loss, meshes=given)(sharded_inputs)
    with pytest.raises(InputsError, match="cannot be combined"):
        jaxresid.plan(loss, meshes=meshes, mesh=meshes[0])(sharded_inputs)


class RefusingCompiler:
    """In place of `LimitedCompiles`: refuses programs whose estimate is above a limit."""

    def __init__(self, limit):
        self.limit, self.count, self.unconfirmed = limit, 0, ()
        self.left_s, self.is_over = 60.0, False
        self.place, self.settings = parse_place(ON), CompileSettings()

    def spend(self, seconds):
        pass

    def compiled(self, programs, budget_nbytes=None):
        return tuple(map(self._row, programs))

    def _row(self, program):
        self.count += 1
        nbytes = program.estimate_nbytes(self.place)
        needed = 10**9 if nbytes > self.limit else nbytes
        return Compiled(self.place.text, program.policy, peak_nbytes=needed)


@pytest.mark.integration
def test_where_the_compiler_refuses_one_configuration_the_next_is_planned(monkeypatch):
    monkeypatch.setattr("jaxresid.advice.plan.plan.why_unavailable", lambda place: None)

    def planned_with(compiles):
        found = Configurations(Grid((8, 32)), lambda batch, mesh: question(batch))
        by = {"aim": "throughput", "compiles": compiles}
        return jointly_drafted(found, parse_place(ON), 10**8, **by)[0]

    small = subject(question(8)).variants().variant({}).peak_nbytes
    assert small < searched(10**9, "memory", Grid((32,))).peak_nbytes
    assert planned_with(None).selection.configuration.batch == 32
    compiles = RefusingCompiler(small)
    made = planned_with(compiles)
    assert made.selection.configuration.batch == 8
    assert made.confirmed and made.fits and compiles.count >= 2
    (other,) = made.selection.beaten
    assert other.configuration.batch == 32 and other.reason.startswith("does not fit: XLA needs")


@pytest.mark.integration
def test_what_may_fit_by_its_range_is_said_to():
    lowest = searched(10**9, "memory", Grid((32,))).peak_nbytes
    for share, is_said in ((0.99, True), (0.3, False)):
        plan = searched(int(lowest * share), "throughput", Grid((4, 32)))
        assert plan.selection.configuration.batch == 4
        (other,) = plan.selection.beaten
        assert other.reason.startswith("does not fit by the estimate")
        assert ("may by its range; not compiled" in other.reason) == is_said


@pytest.mark.integration
def test_ctrl_c_keeps_the_best_of_the_configurations_searched():
    def progress(text):
        if text == "batch 32: tracing":
            raise KeyboardInterrupt

    def planned_until(progress, keeps):
        found = Configurations(Grid((8, 16, 32)), lambda batch, mesh: question(batch))
        return jointly_drafted(
            found,
            parse_place(ON),
            10**9,
            aim="throughput",
            progress=progress,
            keeps_interrupted=keeps,
        )[0]

    plan = planned_until(progress, True)
    assert plan.interrupted and plan.selection.configuration.batch in (8, 16)
    assert {row.configuration.batch for row in plan.selection.front} <= {8, 16}
    with pytest.raises(KeyboardInterrupt):
        planned_until(progress, False)


def test_microbatches_have_to_divide_the_batch():
    with pytest.raises(InputsError, match="none of the numbers given divides"):
        jaxresid.plan(loss, budget="1GiB", microbatches=3, argnums=0, on=ON)(*inputs(8))


MODEL = """
    import jax, jax.numpy as jnp

    def layer(x, w):
        return x + jnp.tanh(jnp.sin(x @ w["in"]) @ w["out"]), None

    def loss(params, x):
        x, _ = jax.lax.scan(layer, x, params)
        return jnp.mean(x**2)

    def loss_inputs(batch=8):
        s = jax.ShapeDtypeStruct
        params = {"in": s((4, 128, 256), jnp.float32), "out": s((4, 256, 128), jnp.float32)}
        return params, s((batch, 64, 128), jnp.float32)
"""


# What a model may hold that is interrupted while it is traced with a batch of 32.
INTERRUPTING = """
    import os, signal

    def interrupted_at(rows):
        if rows == 32:
            os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    file = tmp_path / "joint_model.py"
    file.write_text(textwrap.dedent(MODEL))
    return file


def planned(*options):
    return run(["plan", "joint_model.py:loss", "--argnums", "0", "--on", ON, *options])


@pytest.mark.integration
def test_the_command_line(model, capsys):
    assert planned("--budget", "1GiB", "--batch", "8..32", "--microbatches", "1..2") in (0, 1)
    text = capsys.readouterr().out
    assert "of 6 configurations (" in text
    assert "set the batch size to 32" in text
    assert "Pareto front" in text


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--minimize", "time", "--maximize", "throughput"), "cannot be combined"),
        (("--batch", "8..x"), "'8..x' is not a batch size"),
        (("--batch", "32..8"), "'32..8' is an empty range; write 8..32"),
        (("--microbatches", "0"), "'0' is not a number of microbatches"),
        (("--microbatches", "1..1000000000"), "'1..1000000000' are too many; write at most 4096"),
        (("--on", "cpu", "--batch", "8,16", "--budget", "1GiB"), "peaks are not estimated"),
        (
            ("--on", "cpu", "--maximize", "throughput", "--budget", "1GiB"),
            "the rates of cpu are not known",
        ),
        (("--offload", "--minimize", "recompute"), "does not count what offload takes"),
    ],
)
def test_errors_are_one_line(model, capsys, options, error):
    given = ["plan", "joint_model.py:loss", "--argnums", "0"]
    given += [] if "--on" in options else ["--on", ON]
    assert run([*given, *options]) == 2
    said = capsys.readouterr().err
    assert error in said
    assert "Traceback" not in said


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(signal, "SIGINT"), reason="needs signals")
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_a_joint_search_prints_the_plan_and_exits_with_130(model):
    text = model.read_text().replace(
        "def loss(params, x):", "def loss(params, x):\n    interrupted_at(x.shape[0])"
    )
    model.write_text(text + textwrap.dedent(INTERRUPTING))
    options = ["--argnums", "0", "--on", ON, "--budget", "1GiB", "--batch", "8,16,32"]
    done = subprocess.run(
        [sys.executable, "-m", "jaxresid", "plan", "joint_model.py:loss", *options],
        check=False,
        cwd=model.parent,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 130, done.stderr
    assert "Stopped by Ctrl-C after " in done.stdout and "batch 16" in done.stdout
    assert done.stderr.endswith("jaxresid: interrupted; this is the best plan found so far\n")


@pytest.mark.integration
def test_a_plan_over_meshes_is_written(model, capsys, monkeypatch):
    monkeypatch.setattr("jaxresid.cli.commands.plan.why_unavailable", lambda place: "not here")
    weights = "{'in': f32[4,128,256], 'out': f32[4,256,128]}"
    inputs = ("--arg", weights, "--arg", "f32[64,64,128]@data")
    meshes = ("--mesh", "data=1", "--mesh", "data=1,model=1")
    options = ("--budget", "30MiB", *inputs, *meshes, "--format", "json")
    assert planned(*options, "--write") in (0, 1)
    said = capsys.readouterr()
    assert "joint_model.py written" in said.err, said.err
    plan = json.loads(said.out)
    assert plan["selection"]["configuration"]["mesh"] == "data=1"
    assert "jax.checkpoint(" in model.read_text()
    sys.modules.pop("joint_model")
    assert planned(*options) in (0, 1)
    assert json.loads(capsys.readouterr().out)["written_nbytes"] == plan["peak_nbytes"]


@pytest.mark.integration
def test_the_checkpoints_of_a_plan_over_microbatches_are_written(model, capsys, monkeypatch):
    monkeypatch.setattr("jaxresid.cli.commands.plan.why_unavailable", lambda place: "not here")
    options = ("--budget", "9MiB", "--batch", "32", "--microbatches", "4")
    assert planned(*options, "--write", "--format", "json") in (0, 1)
    said = capsys.readouterr()
    assert "joint_model.py written" in said.err
    plan = json.loads(said.out)
    assert "jax.checkpoint(" in model.read_text()
    assert "go through the batch in 4 microbatches" in plan["selection"]["to_set"][0]
    sys.modules.pop("joint_model")
    assert planned(*options, "--format", "json") in (0, 1)
    again = json.loads(capsys.readouterr().out)
    assert again["written_nbytes"] == plan["peak_nbytes"]


@pytest.mark.integration
def test_what_cannot_be_verified_gives_way_to_what_can():
    """Of the first by rank only a plan can be shown that is worse than that of the next."""

    def refused(edits, promised):
        raise UnverifiedError("not here")

    def chosen(is_refused):
        found = Configurations(Grid((16, 32)), lambda batch, mesh: question(batch))
        return jointly_drafted(
            found,
            parse_place(ON),
            10**9,
            aim="throughput",
            checks=lambda check, made: refused if made.batch in is_refused else check,
        )[0]

    free, without = chosen(()), chosen((32,))
    assert free.selection.configuration.batch == 32 and free.verified and free.code
    assert without.selection.configuration.batch == 16 and without.verified and without.code
    (other,) = without.selection.beaten
    assert "faster" in other.reason and "code" in other.reason
    nothing = chosen((16, 32))
    assert nothing.is_untraced and nothing.selection.configuration.batch == 32
