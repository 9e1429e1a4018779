"""Offloaded, recomputed, kept: against formulas, against each other, against XLA."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from small import f32

import jaxresid
from fixtures.inspect import offload
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.program.build import value_and_gradients
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.program.transfers import transfers
from jaxresid.inspector.report import subject
from jaxresid.inspector.residuals.offloading import KeptResidual, offloading
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.render.report.offloading import render_offloading
from jaxresid.results import Transfers
from jaxresid.xla.job import Job
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes.process import execute
from tests.schemas import validate

MIB = 2**20
SCHEMAS = Path(jaxresid.__file__).parent / "schema"
N, B, LAYERS = 64, 16, 6
WIDTH = N * N * 4

cp = jax.checkpoint_policies


def offloading_policy(*names, dst="pinned_host"):
    return cp.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst=dst,
    )


@pytest.fixture
def host(jax_version):
    if jax_version < (0, 7, 2):
        pytest.skip("until 0.7.2 the CPU has no pinned_host memory to put an argument in")
    return offload.memory("pinned_host")


def on_host(host, *shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=host)


def to_device(x):
    return jax.device_put(x, offload.memory("device"))


def said(report):
    return [f.name for f in report.findings]


def parts(found):
    return {
        "kept": found.kept_nbytes / MIB,
        "offloaded": found.offloaded_nbytes / MIB,
        "recomputed": found.recomputed_nbytes / MIB,
        "refetched": found.refetched_nbytes / MIB,
        "added": found.added_nbytes / MIB,
        "without": found.kept_without_nbytes / MIB,
    }


def adds_up(found):
    now = found.kept_nbytes + found.offloaded_nbytes
    gone = found.recomputed_nbytes + found.refetched_nbytes
    return now + gone == found.kept_without_nbytes + found.added_nbytes


# -- JAX's tutorial: ten layers x -> (x @ w1) @ w2


X, Y, WEIGHTS = 2.5, 10.0, 20.0  # MiB: the layers' inputs, their y, both weights


def test_without_host_memory_there_is_nothing_to_say():
    report = jaxresid.inspect(offload.plain)(*offload.inputs())
    assert report.offloading is None
    assert [f.name for f in report.findings] == ["unwrapped-loop-body"]
    assert render_offloading(report) == []
    assert json.loads(report.to_json())["offloading"] is None


def test_of_the_tutorials_saving_most_is_recomputed():
    found = jaxresid.inspect(offload.offloaded)(*offload.inputs()).offloading
    assert parts(found) == {
        **{"kept": 0, "offloaded": X, "recomputed": Y, "refetched": 0, "added": 0},
        "without": X + Y,
    }
    assert found.transfers == Transfers(int(X * MIB), int(X * MIB))
    assert found.host_arguments == () and not found.without_effect


def test_weights_on_the_host_are_fetched_again(host, jax_version):
    report = jaxresid.inspect(offload.weights_on_host)(*offload.weights_on_host_inputs())
    found = report.offloading
    assert parts(found) == {
        **{"kept": 0, "offloaded": X, "recomputed": Y, "refetched": WEIGHTS, "added": 0},
        "without": X + Y + WEIGHTS,
    }
    # Out: x, and since 0.9 the gradients, which go where their weights are. In: x, and the weights
    # once in each pass.
    gradients = WEIGHTS if jax_version >= (0, 9) else 0
    assert found.transfers.to_host_nbytes == (X + gradients) * MIB
    assert found.transfers.to_device_nbytes == (X + 2 * WEIGHTS) * MIB
    assert found.host_arguments == (("argument", WEIGHTS * MIB),)
    assert report.totals.arguments_nbytes == 0
    assert report.totals.host_arguments_nbytes == WEIGHTS * MIB
    assert report.peak.host_nbytes == (X + WEIGHTS + gradients) * MIB


@pytest.mark.parametrize("name", ["offloaded", "weights_on_host"])
def test_a_step_tells_the_same(name, request, jax_version):
    if jax_version < (0, 7, 2):
        pytest.skip("until 0.7.2 a step's avals do not tell what of it is in host memory")
    if name == "weights_on_host":
        request.getfixturevalue("host")
    inputs = getattr(offload, f"{name}_inputs")()
    fun = getattr(offload, name)

    def step(w1, w2, x):
        return jax.grad(fun, argnums=(0, 1))(w1, w2, x)

    report = jaxresid.inspect(step)(*inputs)
    assert report.target.mode == "program"
    assert parts(report.offloading) == pytest.approx(
        parts(jaxresid.inspect(fun)(*inputs).offloading), abs=1e-5
    )
    assert report.offloading.transfers == jaxresid.inspect(fun)(*inputs).offloading.transfers
    if name == "weights_on_host":
        assert report.offloading.host_arguments == (("parameters", WEIGHTS * MIB),)


def test_weights_taken_by_their_index_are_fetched_again(host):
    def loss(ws, x):
        body = jax.checkpoint(lambda x, i: (jnp.sin(x @ to_device(ws[i])), None), prevent_cse=False)
        return jnp.sum(lax.scan(body, x, jnp.arange(LAYERS))[0])

    def step(ws, x):
        return jax.grad(loss, argnums=1)(ws, x)

    inputs = on_host(host, LAYERS, N, N), f32(B, N)
    function = jaxresid.inspect(loss, argnums=(1,))(*inputs).offloading
    for found in (function, jaxresid.inspect(step)(*inputs).offloading):
        assert found.transfers == Transfers(to_device_nbytes=2 * LAYERS * WIDTH)
        assert found.refetched_nbytes == pytest.approx(LAYERS * WIDTH, abs=LAYERS * 4)
        assert adds_up(found)
    assert function.recomputed_nbytes == LAYERS * B * N * 4


@pytest.mark.parametrize("form", ["loop", "unrolled"])
def test_weights_of_straight_line_code_are_fetched_again(host, form):
    def loss(ws, x):
        body = jax.checkpoint(lambda x, w: jnp.sin(x @ to_device(w)))
        if form == "loop":
            for i in range(LAYERS):
                x = jax.checkpoint(lambda x, i=i: jnp.sin(x @ to_device(ws[i])))(x)
        else:
            x, _ = lax.scan(lambda x, w: (body(x, w), None), x, ws, unroll=True)
        return jnp.sum(x)

    inputs = on_host(host, LAYERS, N, N), f32(B, N)
    found = jaxresid.inspect(loss, argnums=(1,))(*inputs).offloading
    assert found.transfers == Transfers(to_device_nbytes=2 * LAYERS * WIDTH)
    assert found.refetched_nbytes == LAYERS * WIDTH
    assert found.recomputed_nbytes == LAYERS * B * N * 4 and adds_up(found)


def test_constants_on_the_host_are_fetched_again(host):
    ws = jax.device_put(jnp.ones((LAYERS, N, N)), host)
    found = jaxresid.inspect(lambda x: remat_scanned(ws, x))(f32(B, N)).offloading
    assert found.host_arguments == (("constant", LAYERS * WIDTH),)
    assert found.refetched_nbytes == LAYERS * WIDTH
    assert found.recomputed_nbytes == LAYERS * B * N * 4 and adds_up(found)


def test_every_row_of_a_comparison_adds_up():
    compared = jaxresid.compare(offload.offloaded)(*offload.inputs(4, 32, 128))
    rows = {r.policy: r for r in compared.rows if r.error is None}
    assert rows["none"].offloading is None and rows["nothing_saveable"].offloading is None
    written = rows["as-written"].offloading
    x, y = 4 * 32 * 32 * 4, 4 * 32 * 128 * 4
    assert (written.offloaded_nbytes, written.recomputed_nbytes) == (x, y)
    hosted = [r for r in rows.values() if r.offloading is not None]
    assert len(hosted) >= 2
    for row in hosted:
        assert adds_up(row.offloading)
        assert row.offloading.kept_nbytes == row.kept_nbytes
        assert row.offloading.offloaded_nbytes == row.host_nbytes
        assert row.offloading.transfers == Transfers(row.host_nbytes, row.host_nbytes)


def test_what_is_kept_because_of_a_checkpoint_alone():
    def some(*nbytes, memory="device"):
        return [KeptResidual(n, n, memory) for n in nbytes]

    trace = subject(Question(offload.plain, offload.inputs(2, 4, 8))).trace
    program = value_and_gradients(trace)
    now, plain = [*some(1, 1, 4), *some(16, memory="host")], some(1, 2, 2, 16)
    assert offloading(program, lambda: now, lambda: plain) is None
    found = offloading(program, lambda: now, lambda: plain, without_effect=True)
    assert (found.kept_nbytes, found.offloaded_nbytes) == (6, 16)
    assert (found.recomputed_nbytes, found.added_nbytes) == (4, 5)
    assert found.kept_without_nbytes == 21 and adds_up(found)


# -- transfers


def layered(body, form):
    def loss(ws, x):
        if form == "scan":
            x, _ = lax.scan(lambda x, w: (body(x, w), None), x, ws)
        else:
            for i in range(LAYERS):
                x = body(x, ws[i])
        return jnp.sum(x)

    return loss


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_transfers_are_those_of_all_trips(form):
    def body(x, w):
        return jnp.sin(checkpoint_name(x, "x") @ w)

    prevent = form == "loop"
    remat = jax.checkpoint(body, policy=offloading_policy("x"), prevent_cse=prevent)
    found = jaxresid.inspect(layered(remat, form))(f32(LAYERS, N, N), f32(B, N)).offloading
    nbytes = LAYERS * B * N * 4
    assert found.transfers == Transfers(nbytes, nbytes)
    assert found.offloaded_nbytes == nbytes and adds_up(found)


def test_a_jitted_function_moves_what_its_out_shardings_say(host):
    def step(w, x):
        return x, w - jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)

    def program(**places):
        jitted = jax.jit(step, **places)
        return step_program(subject(Question(jitted, (f32(N, N), f32(B, N)))).trace)

    assert transfers(program()) == Transfers()
    placed = program(out_shardings=(None, host))
    assert transfers(placed) == Transfers(to_host_nbytes=WIDTH)
    assert [v.memory for v in placed.block.outputs] == ["device", "host"]


def test_a_branch_moves_and_the_loop_around_it_repeats_it(host):
    def step(ws, x, on):
        def body(x, w):
            y = lax.cond(on, lambda: x @ to_device(w), lambda: x)
            return y, None

        x = lax.scan(body, x, ws)[0]
        return x, jax.grad(lambda x: jnp.sum(jnp.sin(x)))(x)

    found = subject(Question(step, (on_host(host, LAYERS, N, N), f32(N, N), jnp.array(True))))
    assert transfers(step_program(found.trace)) == Transfers(to_device_nbytes=LAYERS * WIDTH)


# -- offloads that move nothing


def leaving(x, w):
    return checkpoint_name(jnp.sin(x @ w), "x")


def entering(x, w):
    return jnp.sin(checkpoint_name(x, "x") @ w)


def remat(body, policy):
    return layered(jax.checkpoint(body, policy=policy, prevent_cse=False), "scan")


@pytest.mark.parametrize("is_step", [False, True])
@pytest.mark.parametrize(
    ("body", "policy", "without_effect"),
    [
        (leaving, offloading_policy("x"), True),
        (entering, offloading_policy("x"), False),
        (leaving, cp.nothing_saveable, False),
    ],
)
def test_an_offload_without_effect_is_said(is_step, body, policy, without_effect):
    fun = remat(body, policy)
    if is_step:
        fun = jax.grad(fun)
    report = jaxresid.inspect(fun)(f32(LAYERS, N, N), f32(B, N))
    assert report.target.mode == ("program" if is_step else "loss")
    assert said(report) == ["offload-without-effect"] * without_effect
    if without_effect:
        assert report.offloading.without_effect and not report.offloading.offloaded_nbytes
        found = [v.name for v in jaxresid.check(fun)(f32(LAYERS, N, N), f32(B, N))]
        assert "offload-without-effect" in found


def test_an_offload_to_another_kind_of_memory_is_said(jax_version):
    if jax_version < (0, 7, 2):
        pytest.skip("until 0.7.2 a memory kind that is none raises")
    report = jaxresid.inspect(remat(entering, offloading_policy("x", dst="unpinned_host")))(
        f32(LAYERS, N, N), f32(B, N)
    )
    (finding,) = (f for f in report.findings if f.name == "offload-without-effect")
    assert "it stays in device memory" in finding.message
    assert finding.measured["device_nbytes"] == LAYERS * B * N * 4
    assert "offload to 'pinned_host'" in finding.help


@pytest.mark.parametrize(
    ("last", "nbytes", "because"),
    [
        (jnp.sin, B * N * 4, "it stays in device memory"),
        (lambda x: x + 1, 0, "the backward pass does not need that value"),
    ],
    ids=["stays", "unread"],
)
def test_an_offload_of_products_without_effect_is_said(last, nbytes, because, jax_version):
    if nbytes and jax_version < (0, 7, 2):
        pytest.skip("until 0.7.2 a memory kind that is none raises")
    dst = "unpinned_host" if nbytes else "pinned_host"
    policy = cp.offload_dot_with_no_batch_dims("device", dst)

    def loss(w, x):
        return jnp.sum(jnp.sin(jax.checkpoint(lambda w: last(x @ w), policy=policy)(w)))

    (finding,) = jaxresid.inspect(loss)(f32(N, N), f32(B, N)).findings
    assert finding.measured == {"names": [], "device_nbytes": nbytes}
    assert f"what it matches, but none of it is in host memory: {because}" in finding.message


def test_a_comparison_says_which_policies_offload_nothing(capsys):
    compared = jaxresid.compare(remat(leaving, offloading_policy("x")))(f32(6, N, N), f32(B, N))
    rows = {r.policy: r for r in compared.rows if r.error is None}
    assert rows["as-written"].offloading.without_effect
    assert rows["nothing_saveable"].offloading is None
    compared.print()
    assert "as written offloads nothing" in " ".join(capsys.readouterr().out.split())


# -- copies of arguments, Python loops, transposes


def test_a_copy_on_the_device_is_no_argument(host):
    def loss(w, x):
        return jnp.sum(jnp.sin(x @ to_device(w)))

    report = jaxresid.inspect(loss)(on_host(host, N, N), f32(B, N))
    (copy,) = (r for r in report.residuals if getattr(r.origin, "path", None) == "w")
    assert (copy.origin.kind, copy.origin.primitive) == ("computed", "device_put")
    assert copy.aval.memory == "device" and copy.nbytes == WIDTH
    # Within the device's memory nothing is copied.
    report = jaxresid.inspect(loss)(f32(N, N), f32(B, N))
    assert "w" in [r.origin.path for r in report.residuals if r.origin.kind == "argument"]


def walked(ws, x, one=lambda x, w: jnp.sin(x @ to_device(w))):
    for w in ws:
        x = one(x, w)
    return jnp.sum(x)


def at_once(ws, x):
    for w in [to_device(w) for w in ws]:
        x = jnp.sin(x @ w)
    return jnp.sum(x)


def remat_walked(ws, x):
    return walked(ws, x, jax.checkpoint(lambda x, w: jnp.sin(x @ to_device(w))))


def remat_scanned(ws, x):
    body = jax.checkpoint(lambda x, w: (jnp.sin(x @ to_device(w)), None), prevent_cse=False)
    return jnp.sum(lax.scan(body, x, ws)[0])


def sliced(ws, x):
    return walked([ws[i] for i in range(LAYERS)], x)


def split(ws, x):
    return walked([w[0] for w in lax.split(ws, (1,) * LAYERS)], x)


@pytest.mark.parametrize("is_step", [False, True])
@pytest.mark.parametrize(
    ("fun", "is_stacked", "is_found"),
    [
        (walked, False, True),
        (remat_walked, False, True),
        (walked, True, True),
        (sliced, True, True),
        (split, True, True),
        (at_once, False, False),
        (remat_scanned, True, False),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_python_loops_over_arguments_in_host_memory(host, fun, is_stacked, is_found, is_step):
    ws = on_host(host, LAYERS, N, N) if is_stacked else [on_host(host, N, N)] * LAYERS
    target = jax.grad(fun) if is_step else fun
    report = jaxresid.inspect(target)(ws, f32(B, N))
    assert said(report) == ["unrolled-host-moves"] * is_found
    if is_found:
        (finding,) = report.findings
        # A gradient alone does without the forward pass of a checkpointed last layer.
        count = LAYERS - (is_step and fun is remat_walked)
        assert finding.measured["count"] == count
        assert finding.measured["nbytes"] == count * WIDTH
        assert finding.measured["largest_nbytes"] == WIDTH
        assert "to_device(w)" in finding.location.code or "return jax" in finding.location.code


def test_a_layer_of_many_weights_is_one_step_of_the_loop(host):
    def loss(layers, x):
        for layer in layers:
            up, down = jax.tree.map(to_device, layer)
            x = jnp.sin(x @ up) @ down
        return jnp.sum(x)

    layers = [[on_host(host, N, 2 * N), on_host(host, 2 * N, N)]] * LAYERS
    (finding,) = jaxresid.inspect(loss)(layers, f32(B, N)).findings
    assert (finding.name, finding.measured["count"]) == ("unrolled-host-moves", 2 * LAYERS)
    assert finding.measured["largest_nbytes"] == 2 * WIDTH
    assert finding.message.endswith("at once, not 64.00 KiB at a time")


def test_parameters_and_then_the_state_moved_by_one_helper_are_no_loop(host):
    def step(ws, moments, x):
        ws = jax.tree.map(to_device, ws)
        value, gradient = jax.value_and_grad(lambda ws: walked(ws, x, lambda x, w: x @ w))(ws)
        moments = jax.tree.map(to_device, moments)
        moments = [0.9 * m + g for m, g in zip(moments, gradient, strict=True)]
        return value, [w - m for w, m in zip(ws, moments, strict=True)], moments

    ws = [on_host(host, N, N)] * LAYERS
    report = jaxresid.inspect(step)(ws, ws, f32(B, N))
    assert report.target.mode == "program" and said(report) == []
    assert report.offloading.transfers.to_device_nbytes == 2 * LAYERS * WIDTH


def test_small_arguments_are_not_worth_a_word(host):
    def loss(scales, x):
        for scale in scales:
            x = jnp.sin(x) * to_device(scale)
        return jnp.sum(x)

    report = jaxresid.inspect(loss)([on_host(host, 4)] * LAYERS, f32(4096, 4))
    assert report.findings == ()


def scanned_over(order):
    def loss(ws, x):
        return remat_scanned(jnp.transpose(ws, order), x)

    return loss


@pytest.mark.parametrize(
    ("order", "shape"),
    [((1, 0, 2), (N, LAYERS, N)), ((2, 0, 1), (N, N, LAYERS)), ((0, 2, 1), (LAYERS, N, N))],
)
def test_transposes_in_host_memory(host, order, shape):
    report = jaxresid.inspect(scanned_over(order))(on_host(host, *shape), f32(B, N))
    assert said(report) == ["transposed-host-scan"]
    (finding,) = report.findings
    assert finding.measured == {"nbytes": LAYERS * WIDTH, "paths": ["ws"]}
    assert finding.location.code == "return remat_scanned(jnp.transpose(ws, order), x)"


def test_a_transpose_that_moves_no_element_is_none(host):
    def loss(ws, x):
        return remat_scanned(jnp.moveaxis(ws, 1, 0)[:, 0], x)

    report = jaxresid.inspect(loss)(on_host(host, 1, LAYERS, N, N), f32(B, N))
    assert said(report) == []


def test_transposes_on_the_device_are_none(host):
    def loss(ws, x):
        return remat_scanned(jnp.moveaxis(to_device(ws), 1, 0), x)

    report = jaxresid.inspect(loss)(on_host(host, N, LAYERS, N), f32(B, N))
    assert said(report) == []


# -- output


def test_the_text_of_a_report(capsys):
    jaxresid.inspect(offload.offloaded)(*offload.inputs()).print(verbose=True)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.split("\n")]
    at = lines.index("host memory of 12.50 MiB kept without any checkpoint:")
    assert lines[at + 1 : at + 6] == [
        "2.50 MiB offloaded: kept in host memory for the backward pass",
        "10.00 MiB recomputed in the backward pass",
        "0 B kept in device memory",
        "2.50 MiB moved to the host in each step",
        "2.50 MiB moved to the device in each step",
    ]


def test_the_text_of_a_comparison(capsys):
    jaxresid.compare(offload.offloaded)(*offload.inputs()).print()
    out = capsys.readouterr().out
    block = out[out.index("host memory  MiB") :].split("\n\n")[0].split("\n")
    assert block[1].split() == ["offloaded", "recomputed", "kept", "to", "host", "to", "device"]
    assert block[2].split() == ["B", "2.50", "10.00", "0", "2.50", "2.50"]


def test_json_keeps_the_schemas():
    report = json.loads(jaxresid.inspect(offload.offloaded)(*offload.inputs(3, 8, 16)).to_json())
    compared = jaxresid.compare(remat(leaving, offloading_policy("x")))(f32(6, N, N), f32(B, N))
    compared = json.loads(compared.to_json())
    for name, value in (("report", report), ("compare", compared)):
        validate(value, name)
    assert report["offloading"]["to_host_nbytes"] == report["totals"]["host_nbytes"]
    (written,) = (r for r in compared["rows"] if r["policy"] == "as-written")
    assert written["offloading"]["without_effect"] is True


# -- XLA


def compiled(fun, inputs, on, **options):
    found = subject(Question(fun, inputs, **options))
    done = execute(Job(lowered(found.trace, on.partition(":")[0]), parse_place(on)))
    assert done.error is None, done.error
    return {name.removesuffix("_nbytes"): nbytes / MIB for name, nbytes in done.stats.items()}


TPU = "tpu:v5e:2x2"


@pytest.mark.slow
def test_xla_on_the_cpu_saves_as_much_without_any_offload():
    plain = compiled(offload.plain, offload.inputs(), "cpu")
    moved = compiled(offload.offloaded, offload.inputs(), "cpu")
    body = jax.checkpoint(offload.block, prevent_cse=False)

    def recomputed(w1, w2, x):
        return jnp.sum(lax.scan(body, x, (w1, w2))[0])

    again = compiled(recomputed, offload.inputs(), "cpu")
    assert plain["temp"] - moved["temp"] == pytest.approx(Y, abs=1.5)
    assert again["temp"] == pytest.approx(moved["temp"], abs=0.3)


@pytest.mark.slow
@pytest.mark.tpu
def test_a_tpu_holds_on_the_host_what_is_offloaded():
    report = jaxresid.inspect(offload.offloaded)(*offload.inputs())
    found = compiled(offload.offloaded, offload.inputs(), TPU)
    assert found["host_temp"] * MIB == report.offloading.offloaded_nbytes
    assert compiled(offload.plain, offload.inputs(), TPU).get("host_temp", 0) == 0


@pytest.mark.slow
@pytest.mark.tpu
def test_a_tpu_holds_on_the_host_the_weights_that_live_there(host):
    inputs = offload.weights_on_host_inputs()
    report = jaxresid.inspect(offload.weights_on_host)(*inputs)
    found = compiled(offload.weights_on_host, inputs, TPU)
    assert found["host_temp"] * MIB == report.offloading.offloaded_nbytes
    assert found["host_argument"] * MIB == dict(report.offloading.host_arguments)["argument"]
    assert found["argument"] * MIB == report.peak.arguments_nbytes == 256 * 256 * 4


@pytest.mark.slow
@pytest.mark.tpu
def test_a_tpu_fetches_all_weights_of_a_python_loop_at_once(host):
    """The claim of JXR809: in straight-line code all of the weights but one or two are on the
    device at once, with a checkpoint around each step as well; in a scan one or two of them."""
    n, layers = 2048, 8
    weight = n * n * 4 / MIB
    ws, x = [on_host(host, n, n)] * layers, f32(512, n)
    stacked = on_host(host, layers, n, n)
    scanned = compiled(remat_scanned, (stacked, x), TPU, argnums=(0,))["temp"]
    assert scanned < 4 * weight
    for fun in (walked, remat_walked):
        assert compiled(fun, (ws, x), TPU, argnums=(0,))["temp"] > (layers - 2) * weight


@pytest.mark.slow
def test_xla_on_the_cpu_transposes_all_of_an_argument_first(host):
    """The claim of JXR810."""
    n, layers = 1024, 8
    whole = layers * n * n * 4 / MIB
    x = f32(256, n)
    first = compiled(remat_scanned, (on_host(host, layers, n, n), x), "cpu")["temp"]
    second = compiled(scanned_over((1, 0, 2)), (on_host(host, n, layers, n), x), "cpu")["temp"]
    assert second - first == pytest.approx(whole, rel=0.1)


def test_what_is_fetched_and_kept_counts(host):
    """A copy of a weight is no value that a reader could make again."""
    n, layers = 256, 8
    report = jaxresid.inspect(walked, argnums=(1,))([on_host(host, n, n)] * layers, f32(16, n))
    assert report.peak.temporaries_nbytes > layers * n * n * 4


@pytest.mark.slow
@pytest.mark.tpu
def test_the_estimate_of_what_is_fetched_is_near_a_tpus(host):
    ws, x = [on_host(host, 2048, 2048)] * 8, f32(128, 2048)
    estimate = jaxresid.inspect(walked, argnums=(1,))(ws, x).peak.nbytes
    found = compiled(walked, (ws, x), TPU, argnums=(1,))["peak"] * MIB
    assert estimate == pytest.approx(found, rel=0.1)
