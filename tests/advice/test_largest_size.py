"""The largest batch, context or chunk that fits: against the peaks of all sizes, one by one."""

import json
import random
import re

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.advice.plan.joint.largest import Bracket, Measured, SizeSearch
from jaxresid.base.errors import InputsError
from jaxresid.cli.main import run
from jaxresid.cli.options.batches import Sizes, parsed
from tests.schemas import schema

ON = "tpu:v5e"
MODEL = """\
import jax
import jax.numpy as jnp


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layer(x, w):
    return jnp.tanh(x @ w)


def evaluate(ws, x):
    for w in ws:
        x = jax.checkpoint(layer)(x, w)
    return x


def evaluate_inputs(context=64):
    if context % 64:
        raise ValueError("whole blocks only")
    return [f32(128, 128)] * 2, f32(context, 128)


def only_powers(context):
    if context & (context - 1):
        raise ValueError("powers of two only")
    return evaluate_inputs(context)


def decode(cache, token, at):
    cache = jax.lax.dynamic_update_index_in_dim(cache, token, at, 0)
    return jnp.argmax(jnp.einsum("bd,tbd->bt", token, cache), axis=1), cache


def decode_batch(cache, token, at):
    cache = jax.lax.dynamic_update_index_in_dim(cache, token, at, 1)
    return jnp.argmax(jnp.einsum("bd,btd->bt", token, cache), axis=1), cache


def split(batch):
    mesh = jax.sharding.AbstractMesh((8,), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    cache = jax.ShapeDtypeStruct((batch, 256, 16), jnp.float32, sharding=rows)
    token = jax.ShapeDtypeStruct((batch, 16), jnp.float32, sharding=rows)
    return cache, token, jax.ShapeDtypeStruct((), jnp.int32)


def step(ws, x):
    loss = lambda ws: jnp.mean(evaluate(ws, x) ** 2)
    return jax.tree.map(lambda w, g: w - g, ws, jax.grad(loss)(ws))


step_inputs = evaluate_inputs
"""


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def attend(q, kv):
    """A program whose peak grows as the square of its context."""
    scores = jax.nn.softmax(q @ kv.T)
    return (scores @ kv).astype(jnp.bfloat16)


def attended(context):
    return f32(context, 64), f32(context, 64)


def ends(size):
    peak = jaxresid.inspect(attend, mode="program", on=ON)(*attended(size)).peak
    return peak.low_nbytes, peak.high_nbytes


def planned(sizes, budget, **more):
    return jaxresid.plan(attend, budget=budget, on=ON, batches=sizes, mode="program", **more)(
        attended
    )


class TestTheSearch:
    def test_it_is_that_of_trying_all(self):
        rng = random.Random(7)
        for _ in range(200):
            sizes = sorted(rng.sample(range(1, 10_000), rng.randint(1, 200)))
            power, slope, least = rng.choice((0.5, 1, 2)), rng.randint(0, 50), rng.randint(0, 9999)
            takes = {size: least + int(slope * size**power) for size in sizes}
            budget = rng.choice(list(takes.values())) + rng.randint(-1, 1)
            search = SizeSearch(sizes, sizes, budget)
            knows = rng.random() < 0.8
            bracket = search.run(
                lambda size, takes=takes, budget=budget, knows=knows: Measured(
                    takes[size] <= budget, takes[size] if knows else None
                ),
                rng.choice((None, *sizes)),
            )
            fitting = [size for size in sizes if takes[size] <= budget]
            beyond = [size for size in sizes if takes[size] > budget]
            assert bracket == Bracket(max(fitting, default=None), min(beyond, default=None))

    @pytest.mark.parametrize(("power", "most"), [(1, 4), (2, 10)])
    def test_few_of_many_are_tried(self, power, most):
        tried = []

        def measure(size):
            tried.append(size)
            nbytes = 1000 + 7 * size**power
            return Measured(nbytes <= 10**9, nbytes)

        bracket = SizeSearch(range(1, 10**6 * 500), (), 10**9).run(measure)
        assert bracket.fitting == int(((10**9 - 1000) / 7) ** (1 / power))
        assert len(tried) <= most

    def test_what_cannot_be_traced_leaves_the_coarse_sizes(self):
        def measure(size):
            if size & (size - 1):
                raise InputsError("powers of two only")
            return Measured(size <= 300, size)

        search = SizeSearch(range(1, 1025), [2**n for n in range(11)], 300)
        assert search.run(measure) == Bracket(256, 512)
        assert search.failed

    @pytest.mark.parametrize("parts", [1, 2, 8, 32])
    def test_a_size_that_a_mesh_has_to_divide(self, parts):
        def measure(size):
            if size % parts:
                raise InputsError("cannot be split evenly")
            return Measured(size <= 1399, size // parts)

        sizes = range(4, 4097, 4)
        search = SizeSearch(sizes, [4 * 2**n for n in range(11)], 1399 // parts)
        divided = [size for size in sizes if size % parts == 0]
        fitting = [size for size in divided if size <= 1399]
        assert search.run(measure) == Bracket(fitting[-1], divided[len(fitting)])
        assert len(search.failed) <= 6

    def test_it_ends_where_no_more_can_be_asked(self):
        answers = iter([Measured(True, 10), Measured(True, 20), None])
        search = SizeSearch(range(1, 101), (), 60)
        assert search.run(lambda _: next(answers)).fitting == 6


class TestPrograms:
    def test_the_largest_is_that_of_trying_all(self):
        sizes = list(range(128, 1025, 128))
        of = {size: ends(size) for size in sizes}
        budget = of[640][1] + 100
        plan = planned(sizes, budget)
        fitting = max(size for size, (_, high) in of.items() if high <= budget)
        possible = max(size for size, (low, _) in of.items() if low <= budget)
        found = plan.selection.largest
        assert (found.name, found.size, found.possible) == ("context", fitting, possible)
        assert (found.next.size, found.next.high_nbytes) == (fitting + 128, of[fitting + 128][1])
        assert plan.answer == "fits"
        assert (plan.selection.configuration.batch, plan.sites, plan.code) == (fitting, (), ())

    def test_what_grows(self):
        growth = planned(range(128, 1025, 128), "4MiB").selection.largest.growth
        low, high = growth.low_size, growth.high_size
        shown = sum(each.nbytes for each in growth.values)
        assert 0.98 * growth.nbytes <= shown <= growth.nbytes
        of = {each.value.path or each.value.primitive: each.nbytes for each in growth.values}
        # The scores are the square of the context.
        assert max(each.nbytes for each in growth.values) == 4 * (high**2 - low**2)
        assert of["q"] == 4 * 64 * (high - low)

    def test_none_fits(self):
        plan = planned([512, 1024], 1000)
        found = plan.selection.largest
        assert (found.size, found.next, found.possible, found.tried) == (None, None, None, 1)
        assert (plan.answer, plan.selection.configuration.batch) == ("does not fit", 512)

    def test_all_fit(self):
        found = planned([64, 128, 256], "15GiB").selection.largest
        assert (found.size, found.next, found.possible) == (256, None, None)

    def test_with_gradients_it_is_the_largest_whose_plan_fits(self):
        def loss(w, x):
            return jnp.mean(jnp.tanh(jnp.sin(x @ w) @ w))

        def make(batch):
            return f32(64, 64), f32(batch, 64)

        sizes, budget = [64, 128, 256, 512], 400_000
        fitting = [
            size
            for size in sizes
            if jaxresid.plan(loss, budget=budget, argnums=0, on=ON)(*make(size)).is_within
        ]
        plan = jaxresid.plan(
            loss, budget=budget, argnums=0, on=ON, batches=sizes, maximize="batch"
        )(make)
        assert 1 < len(fitting) < len(sizes)
        assert plan.selection.largest.size == plan.selection.configuration.batch == fitting[-1]
        assert (plan.is_within, plan.target.has_gradient) == (True, True)
        assert plan.selection.largest.growth is None

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"minimize": "recompute"}, "minimize recompute is for programs that take gradients"),
            ({"offload": True}, "offload is for programs that take gradients"),
            ({"microbatches": 2}, "microbatches is for programs that take gradients"),
            ({"maximize": "most"}, "maximize must be throughput or batch, not 'most'"),
        ],
    )
    def test_what_is_for_gradients_is_refused(self, options, reason):
        with pytest.raises(InputsError, match=re.escape(reason)):
            planned([64, 128], "1GiB", **options)

    def test_one_size_is_nothing_to_maximise(self):
        with pytest.raises(InputsError, match=r"give a range, --batch 8\.\.512"):
            planned([64], "1GiB", maximize="batch")


class TestCommandLine:
    @pytest.fixture(autouse=True)
    def ran(self, tmp_path, monkeypatch, capfd):
        (tmp_path / "m.py").write_text(MODEL)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setenv("JAXRESID_CACHE_DIR", str(tmp_path / "cache"))

        def ran(command, *words):
            code = run([command, *words, "-q"])
            return code, *capfd.readouterr()

        return ran

    def test_the_name_and_no_word_of_checkpoints(self, ran):
        code, out, _ = ran(
            *("plan", "m.py:evaluate", "--batch", "context=64..65536", "--on", ON),
            *("--budget", "8MiB"),
        )
        assert code == 0
        assert re.search(r"^context \d+ fits 8.00 MiB: peak about ", out, re.M)
        assert re.search(r"the largest context that fits by the whole range of its estimate", out)
        assert re.search(r"^  context \d+ may not: about ", out, re.M)
        assert re.search(r"each further context takes 1\.\d+ KiB of the estimated peak", out)
        assert re.search(r"^ *\S+ MiB  arguments: ws, x$", out, re.M)
        assert not re.search("checkpoint|recompute|backward|policy|place|to change", out)

    def test_sizes_that_have_to_be_powers_of_two(self, ran):
        words = ("--inputs", "only_powers", "--batch", "context=64..65536", "--budget", "8MiB")
        code, out, _ = ran("plan", "m.py:evaluate", "--on", ON, *words)
        assert code == 0
        size = int(re.search(r"context (\d+) fits", out)[1])
        assert size & (size - 1) == 0

    def test_nothing_to_choose(self, ran):
        fits = ran("plan", "m.py:evaluate", "--on", ON)
        assert fits[0] == 0
        assert "--batch 8..512 finds the largest batch that fits" in " ".join(fits[1].split())
        code, out, _ = ran("plan", "m.py:evaluate", "--on", ON, "--budget", "1KiB")
        assert code == 1
        for way in ("donating", "a smaller batch", "jax.lax.map(f, xs, batch_size=N)"):
            assert way in " ".join(out.split())

    def test_a_spec(self, ran):
        specs = ("--arg", "bf16[cache,8,16]", "--arg", "bf16[8,16]", "--arg", "i32[]")
        words = ("--batch", "cache=16..65536", "--budget", "8MiB", "--on", ON)
        code, out, _ = ran("plan", "m.py:decode", *specs, *words)
        assert code == 0
        assert re.search(r"^cache \d+ fits", out, re.M)

    def test_a_batch_that_a_mesh_divides(self, ran):
        words = ("--inputs", "split", "--batch", "2..4096", "--budget", "8MiB", "--on", ON)
        code, out, err = ran("plan", "m.py:decode_batch", *words)
        assert code == 0, err
        size = int(re.search(r"^batch (\d+) fits", out, re.M)[1])
        assert size % 8 == 0
        assert int(re.search(r"^  batch (\d+) may not", out, re.M)[1]) == size + 8

    def test_json(self, ran):
        words = ("--batch", "context=64..1024", "--on", ON, "--budget", "8MiB", "-f", "json")
        _, out, _ = ran("plan", "m.py:evaluate", *words)
        found = json.loads(out)
        assert found["selection"]["configuration"]["name"] == "context"
        assert found["target"]["gradients"] == []
        definitions = schema("plan")["$defs"]
        for name, value in (
            ("selection", found["selection"]),
            ("largest", found["selection"]["largest"]),
            ("growth", found["selection"]["largest"]["growth"]),
        ):
            assert definitions[name]["required"] == list(value)

    @pytest.mark.parametrize("flag", ["--write", "--diff", "--emit=linen"])
    def test_nothing_is_written(self, ran, flag):
        code, _, err = ran("plan", "m.py:evaluate", "--on", ON, flag)
        assert code == 2
        flag = flag.partition("=")[0]
        assert f"{flag} is for checkpoints, and m.py:evaluate takes no gradient" in err

    def test_a_name_that_the_inputs_do_not_have(self, ran):
        _, _, err = ran("plan", "m.py:evaluate", "--batch", "64", "--on", ON)
        assert "has no parameter named batch or batch_size; for another size write" in err
        assert "--batch context=64" in err
        _, _, err = ran("plan", "m.py:evaluate", "--batch", "rows=64", "--on", ON)
        assert "has no parameter named rows" in err

    @pytest.mark.integration
    def test_the_compiler_decides(self, ran):
        words = ("--batch", "context=64..65536", "--on", "cpu", "--budget", "8MiB")
        code, out, _ = ran("plan", "m.py:evaluate", *words)
        assert code == 0
        size = int(re.search(r"^context (\d+) fits 8.00 MiB: peak \S+ MiB by XLA", out, re.M)[1])
        beyond = int(re.search(r"^  context (\d+) does not: \S+ MiB by XLA", out, re.M)[1])
        assert beyond == size + 64
        assert re.search(r"each further context takes \S+ KiB by XLA", out)

    @pytest.mark.integration
    def test_a_sweep_has_no_policies(self, ran):
        words = ("--batch", "context=64,128", "--on", "cpu", "--no-cache")
        code, out, _ = ran("sweep", "m.py:evaluate", *words)
        assert code == 0
        assert "context 64" in out
        assert "2 results: 2 compiled" in out
        assert not re.search("checkpoint|recompute|polic|as-written", out)
        code, _, err = ran("sweep", "m.py:evaluate", *words, "--policy", "nothing_saveable")
        assert code == 2
        assert "takes no gradient, so no policy changes it" in err


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "name", "listed", "count"),
        [
            ("8", "batch", (8,), 1),
            ("8,16", "batch", (8, 16), 2),
            ("context=8..64", "context", (8, 16, 32, 64), 8),
            ("8..20", "batch", (8, 16, 20), 3),
            ("4,8..16", "batch", (4, 8, 16), 3),
        ],
    )
    def test_read_and_written(self, text, name, listed, count):
        sizes = parsed(None, None, text)
        assert (sizes.name, sizes.listed, len(sizes.every)) == (name, listed, count)
        assert str(sizes) == text
        assert parsed(None, None, str(sizes.at(8))).listed == (8,)
        assert sizes.at(8).name == name

    @pytest.mark.parametrize("text", ["0", "=8", "a-b=8", "1..9000000", "context=", "8=context"])
    def test_refused(self, text):
        import click

        with pytest.raises(click.BadParameter):
            parsed(None, None, text)

    def test_none(self):
        assert not Sizes()
        assert Sizes().single is None
