"""Python loops in groups: against brute force, and the written code against the original."""

import ast
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxresid
from jaxresid.advice.plan.plan import Planning
from jaxresid.advice.plan.search.nesting import Shape, segmented
from jaxresid.advice.plan.source.loop_variables import loop_variables
from jaxresid.advice.plan.verification import figures, in_process_check
from jaxresid.advice.timing.chips import chip_of
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.render.tables.plan import part_texts
from jaxresid.results import PlannedPart
from tests.advice.nested_code import ON, drafts, folder, module
from tests.advice.test_writing import edited, refused, site
from tests.benchmarks.nested_plans import searched_for
from tests.plans import drafted
from tests.shared_variants import sharing_variants
from tests.small import f32

__all__ = ["folder"]

LAYERS = 8


# -- the search ------------------------------------------------------------------------------------


def layer(w, x):
    return x + jnp.tanh(jnp.tanh(x @ w) @ w)


def plain(ws, x):
    for w in ws:
        x = layer(w, x)
    return jnp.mean(x**2)


def checkpointed(ws, x):
    for w in ws:
        x = jax.checkpoint(layer)(w, x)
    return jnp.mean(x**2)


def without_calls(ws, x):
    for w in ws:
        h = jnp.tanh(x @ w)
        x = x + jnp.tanh(h @ w)
    return jnp.mean(x**2)


def step(ws, x):
    value, grads = jax.value_and_grad(plain)(ws, x)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads)


def checkpointed_step(ws, x):
    value, grads = jax.value_and_grad(checkpointed)(ws, x)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads)


PROGRAMS = [plain, checkpointed, without_calls, step, checkpointed_step]


def inputs(length=LAYERS):
    return [f32(32, 32)] * length, f32(2048, 32)


def searched(fun, args, budget):
    found = subject(Question(fun, on=ON).of(args, {}))
    return found, searched_for(found, budget)


def groups_in(planning):
    (nest,) = [n for n in planning.variants.nests() if n.place.kind == "groups"]
    return nest


def every_size(length):
    return [Shape((size,), *divmod(length, size)) for size in range(2, length // 2 + 1)]


def everything(planning):
    """Each treatment of the layers, in groups of each size and without groups, traced."""
    search, nest = planning.search, groups_in(planning)
    menus = [m for m in search.menus if m.place in nest.inside]
    found = []
    for options in itertools.product(*(m.options for m in menus)):
        chosen = dict(zip((m.place for m in menus), options, strict=True))
        found.append(search.trial(chosen))
        for shape in every_size(nest.length):
            found.append(search.trial({**chosen, nest.place: segmented(None, shape)}))
    return [t for t in found if t is not None]


@pytest.mark.integration
@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda fun: fun.__name__)
def test_no_more_recompute_than_the_best_by_enumeration(fun):
    found = sharing_variants(subject(Question(fun, on=ON).of(inputs(), {})))
    planning = searched_for(found, 1)
    with found.tracing():
        tried = everything(planning)
    low, high = min(t.peak for t in tried), max(t.peak for t in tried)
    assert planning.search.lowest().peak <= 1.01 * low
    before = None
    for share in np.linspace(0.02, 0.9, 7):
        budget = int(low * (high / low) ** share)
        best = min(t.cost for t in tried if t.peak <= budget)
        search = searched_for(found, budget).search
        cost = search.best().cost
        assert cost <= max(1.01 * best, best + search.slack)
        assert before is None or cost <= before + search.slack  # more budget, no more recompute
        before = cost


def test_a_group_is_one_checkpoint_of_its_layers():
    def by_hand(ws, x):
        def some(ws, x):
            for w in ws:
                x = layer(w, x)
            return x

        for at in range(0, 6, 3):
            x = jax.checkpoint(some)(ws[at : at + 3], x)
        return jnp.mean(some(ws[6:], x) ** 2)

    written = subject(Question(by_hand, on=ON).of(inputs(), {})).variants().variant({})
    found, planning = searched(plain, inputs(), 2**40)
    nest = groups_in(planning)
    assert (nest.length, nest.carry_nbytes) == (LAYERS, 2048 * 32 * 4)
    assert [p.function for p in nest.inside] == ["layer"]
    with found.tracing():
        tried = planning.search.trial({nest.place: segmented(None, Shape((3,), 2, 2))})
    assert tried.peak == written.peak_nbytes
    assert tried.variant.kept_nbytes == written.kept_nbytes
    assert tried.variant.cost == written.cost


@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda fun: fun.__name__)
def test_groups_are_found(fun):
    nest = groups_in(searched(fun, inputs(), 2**40)[1])
    assert nest.length == LAYERS
    assert len(nest.inside) == 1
    assert nest.place.trips == LAYERS


def test_few_or_small_iterations_are_not_grouped():
    def few(ws, x):
        for w in ws[:3]:
            x = layer(w, x)
        return jnp.mean(x**2)

    def small(ws, x):
        total = 0.0
        for w in ws:
            total = total + jnp.sum(jnp.sin(w))
        return jnp.mean(jnp.tanh(x @ jnp.ones((32, 4096)))) + total

    for fun in (few, small):
        planning = searched(fun, inputs(), 2**40)[1]
        assert [n for n in planning.variants.nests() if n.place.kind == "groups"] == []


@pytest.mark.integration
def test_a_plan_says_how_the_loop_is_grouped():
    found = subject(Question(plain, on=ON).of(inputs(16), {}))
    made = drafted(found, 1)[0]
    (grouped,) = [s for s in made.sites if s.kind == "groups"]
    assert grouped.location.line == plain.__code__.co_firstlineno + 1
    assert 2 <= grouped.parts[0].segments[0] <= 8
    ((text, _),) = part_texts(grouped)
    assert text.startswith(f"{16 // grouped.parts[0].segments[0]} groups of")
    assert "jax.checkpoint(run_group, static_argnums=0)(start, x)" in "\n".join(made.code)


# -- the code --------------------------------------------------------------------------------------

HEAD = """\
import jax
import jax.numpy as jnp


def layer(w, x):
    return x + jnp.tanh(jnp.tanh(x @ w) @ w)


"""
BODIES = {
    "layers": """\
def loss(ws, x):
    for w in ws:
        x = layer(w, x)  # one layer
    return jnp.mean(x**2)
""",
    "checkpointed": """\
def loss(ws, x):
    block = jax.checkpoint(layer)
    for w in ws:
        x = block(w, x)
    return jnp.mean(x**2)
""",
    "numbered": """\
def loss(ws, x):
    scale = 2.0
    for i, w in enumerate(ws):
        h = jnp.tanh(x @ w)

        x = layer(w, x) + scale * h / (i + 1)
    return jnp.mean(x**2)
""",
    "several results": """\
def loss(ws, x):
    penalty, norm = 0.0, None
    for w in ws:
        h = layer(w, x)
        penalty += jnp.sum(h**2)
        norm = jnp.mean(h)
        x = h
    return jnp.mean(x**2) + penalty * norm
""",
    "keys": """\
def loss(ws, x):
    keys = jax.random.split(jax.random.key(0), len(ws))
    for w, key in zip(ws, keys, strict=True):
        mask = jax.random.bernoulli(key, 0.9, x.shape)
        x = jnp.where(mask, layer(w, x), x)
    return jnp.mean(x**2)
""",
    "carried key": """\
def loss(ws, x):
    key = jax.random.key(0)
    for w in ws:
        key, own = jax.random.split(key)
        x = layer(w, x) * jax.random.uniform(own, x.shape)
    return jnp.mean(x**2)
""",
    "by number": """\
def loss(ws, x):
    for i in range(len(ws) - 1, -1, -1):
        if i % 2:
            continue_with = layer(ws[i], x)
        else:
            continue_with = layer(ws[i], 0.5 * x)
        x = continue_with
    return jnp.mean(x**2)
""",
    "reversed": """\
def loss(ws, x):
    for w in reversed(ws):
        x = layer(w, x)
    return jnp.mean(x**2)
""",
    "in a function inside": """\
def loss(ws, x):
    start = 3.0

    def network(x, run_group=1.0):
        for w in ws: # the layers
            x = layer(w, run_group * x)
        return x

    return start * jnp.mean(network(x) ** 2)
""",
    "read before": """\
def loss(ws, x):
    total = 0.0
    for _ in range(1):
        before = x
        for w in ws:
            x = layer(w, x)
            total = total + jnp.mean(before * x)
    return total
""",
}


def gradients(fun, *args):
    return jax.jit(jax.value_and_grad(fun, argnums=tuple(range(len(args)))))(*args)


AS_IT_IS = {}


def gradients_as_it_is(name, length, loss):
    """Return the gradients of the code of a name before any plan, which sizes do not change."""
    if (name, length) not in AS_IT_IS:
        AS_IT_IS[name, length] = gradients(loss, *real(length))
    return AS_IT_IS[name, length]


def real(length):
    keys = jax.random.split(jax.random.key(0), length + 1)
    ws = [0.3 * jax.random.normal(key, (8, 8)) for key in keys[1:]]
    return ws, jax.random.normal(keys[0], (4, 8))


def equal(want, got):
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        # Sums of large entries may leave small ones.
        scale = max(1.0, float(np.max(np.abs(a))))
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5 * scale)


# The code holds some small arrays less or more than was promised of the trace that was cut: its
# iterations differ, or it keeps all keys where the trace kept those that are read (JAX 0.11.2). A
# plan tells of the code, then.
NEARLY = ("by number", "keys")


def written(fun, args, size, *, bare, is_exact=True):
    """The text after a plan in groups of a size, once its code gives what is promised."""
    asked = Question(fun, on=ON).of(args, {})
    found = subject(asked)
    with found.tracing():
        planning = Planning(found, 1, chip_of(found.place), False, lambda _: None)
        nest = groups_in(planning)
        chosen = {nest.place: segmented(None, Shape((size,), *divmod(nest.length, size)))}
        for menu in planning.search.menus:
            # What a block does is written by hand.
            if bare and menu.place in nest.inside and menu.place.kind != "block":
                nothing = (o for o in menu.known if o.choice and o.choice.policy is None)
                chosen[menu.place] = next(nothing)
        tried = planning.search.trial(chosen)
        made = drafts(planning, in_process_check(found, asked))
        draft = made._draft(tried)
    assert draft.plan_edits.problems == ()
    assert draft.doubt is None
    assert draft.figures.plain_flops == planning.plain.cost.flops
    if is_exact:
        assert draft.figures == figures(tried.variant, planning.plain)
    else:
        assert abs(draft.figures.peak_nbytes - tried.peak) < 0.2 * tried.peak
        assert abs(draft.figures.recompute_flops - tried.cost) < 0.1 * tried.cost
    (edit,) = draft.plan_edits.edits
    return edit.new.decode()


@pytest.mark.integration
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(("size", "bare"), [(4, False), (3, True)], ids=["4", "3 checkpointed"])
def test_the_code_gives_what_is_promised_and_the_same_gradients(name, size, bare, folder):
    original = module(folder, HEAD + BODIES[name])
    args = [f32(8, 8)] * LAYERS, f32(4, 8)
    text = written(original.loss, args, size, bare=bare, is_exact=name not in NEARLY)
    again = module(folder, text)
    # What was written for eight layers is right for other numbers of them.
    for length in (LAYERS, 9):
        want = gradients_as_it_is(name, length, original.loss)
        equal(want, gradients(again.loss, *real(length)))


def grouped(text, call, size, *, length=12, policy=None, function="loop in loss"):
    made = site("groups", text, call, function, PlannedPart(1, True, policy, (), (size,)))
    return dataclasses.replace(made, trips=length)


def test_the_code_is_as_a_person_writes_it(folder):
    text = HEAD + BODIES["layers"]
    assert (
        edited(text, grouped(text, "for w in ws", 4))
        == HEAD
        + """\
def loss(ws, x):
    def run_group(start, x):
        for w in ws[start : start + 4]:
            x = layer(w, x)  # one layer
        return x

    for start in range(0, len(ws), 4):
        x = jax.checkpoint(run_group, static_argnums=0)(start, x)
    return jnp.mean(x**2)
"""
    )
    assert (
        edited(text, grouped(text, "for w in ws", 5, policy="dots_with_no_batch_dims_saveable"))
        == HEAD
        + """\
def loss(ws, x):
    def run_group(start, x):
        for w in ws[start : start + 5]:
            x = layer(w, x)  # one layer
        return x

    checkpointed = jax.checkpoint(run_group, static_argnums=0, \
policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    covered = len(ws) // 5 * 5
    for start in range(0, covered, 5):
        x = checkpointed(start, x)
    x = run_group(covered, x)
    return jnp.mean(x**2)
"""
    )
    body_too = site("call", text, "layer(w, x)  #", "layer", PlannedPart(12, True))
    made = edited(text, grouped(text, "for w in ws", 4), body_too)
    assert "            x = jax.checkpoint(layer)(w, x)  # one layer\n" in made


NOT_WRITTEN = {
    "an outer list": ("        x = layer(w, x)\n        kept.append(x)\n", "it changes kept"),
    "an outer element": ("        x = kept[0] = layer(w, x)\n", "it changes kept"),
    "a break": ("        x = layer(w, x)\n        if w is None:\n            break\n", "a break"),
    "a return": (
        "        x = layer(w, x)\n        if w is None:\n            return x\n",
        "return",
    ),
    "next": ("        x = layer(w, x) * next(kept)\n", "next()"),
    "the layers": ("        x, ws = layer(w, x), ws\n", "goes through changes"),
    "nothing read": ("        y = layer(w, x)\n", "nothing that it computes"),
    "lines in a string": ('        x = layer(w, x)\n        """a\n        b"""\n', "several lines"),
    "an else": ("        x = layer(w, x)\n    else:\n        x = 2 * x\n", "it has an else"),
}


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_what_cannot_be_written_is_said_with_what_to_write(name, folder):
    body, says = NOT_WRITTEN[name]
    text = f"{HEAD}def loss(ws, x):\n    kept = []\n    for w in ws:\n{body}    return x\n"
    (reason,) = refused(text, grouped(text, "for w in ws", 5))
    assert reason.startswith("model.py:11: the body of this loop cannot be made a function: ")
    assert says in reason
    assert "range(0, 10, 5), and go on with the last 2 iterations" in reason


def test_the_variable_of_the_loop_may_not_be_read_after_it(folder):
    text = f"{HEAD}def loss(ws, x):\n    for w in ws:\n        x = layer(w, x)\n    return x @ w\n"
    (reason,) = refused(text, grouped(text, "for w in ws", 4))
    assert "w is read after the loop" in reason


def test_a_loop_that_is_no_for_statement_is_left_to_hands(folder):
    text = f"{HEAD}def loss(ws, x):\n    while ws:\n        x = layer(ws.pop(), x)\n    return x\n"
    (reason,) = refused(text, grouped(text, "while ws", 4))
    assert "no for statement; by hand: make what 4 iterations do" in reason


# -- the comparison --------------------------------------------------------------------------------


def test_sizes_are_compared():
    compared = jaxresid.compare(plain, at="segments", on=ON)(*inputs(12))
    rows = {row.policy: row for row in compared.rows}
    sizes = (2, 3, 4, 6)
    cut = [f"groups of {size}{more}" for size in sizes for more in ("", ", checkpointed inside")]
    assert list(rows) == ["none", "as-written", *cut]
    found, planning = searched(plain, inputs(12), 2**40)
    with found.tracing():
        tried = planning.search.trial(
            {groups_in(planning).place: segmented(None, Shape((4,), 3, 0))}
        )
    assert rows["groups of 4"].peak_nbytes == tried.peak
    assert rows["groups of 4"].recompute_flops == tried.cost
    inside = rows["groups of 4, checkpointed inside"]
    assert inside.peak_nbytes < tried.peak < rows["none"].peak_nbytes


def test_segments_of_scans_are_compared():
    def scanned(ws, x):
        return jnp.mean(jax.lax.scan(lambda x, w: (layer(w, x), None), x, ws)[0])

    compared = jaxresid.compare(scanned, at="segments", on=ON)(f32(9, 32, 32), f32(2048, 32))
    named = [row.policy for row in compared.rows if row.error is None]
    assert named[2:] == ["segments of 3", "segments of 3, checkpointed inside"]


def test_without_a_loop_there_is_nothing_to_cut():
    with pytest.raises(InputsError, match="no loop was found that can be cut"):
        jaxresid.compare(jnp.sum, at="segments", on=ON)(f32(8))
    with pytest.raises(InputsError, match="compared without policies"):
        jaxresid.compare(plain, at="segments", policies={"a": None}, on=ON)(*inputs())


# -- what a loop hands on --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "after", "carried", "results"),
    [
        ("x = f(w, x)", "x", "x", "x"),
        ("h = f(w, x); x = h + w", "x", "x", "x"),
        ("h = f(w, x); x = h", "x, h", "x", "h x"),
        ("x += w", "x", "x", "x"),
        ("x = f(x) if w else g(y)", "x", "x", "x"),
        ("y = [x * z for z in w]; x = sum(y)", "x", "x", "x"),
        ("y = (lambda x: x + w)(x); x = y", "x", "x", "x"),
        ("(x, z), y = f(w)", "x", "", "x"),
        ("x = f(s := w) + s", "x", "", "x"),
        ("def g(v): return v * x\n        x = g(w)", "x", "x", "x"),
        ("if w: a = w\n        x = f(a)", "x", "a", "a x"),
        ("for v in w: x = f(v, x)", "x", "x", "x"),
        ("with f(w) as v: x = v", "x", "", "x"),
    ],
)
def test_what_a_loop_hands_on(body, after, carried, results):
    text = f"def loss(x, y, ws):\n    for w in ws:\n        {body}\n    return {after}\n"
    (function,) = ast.parse(text).body
    found = loop_variables(function.body[0], function)
    assert (set(found.carried), set(found.results)) == (set(carried.split()), set(results.split()))


def test_what_another_round_around_a_loop_reads_is_a_result():
    text = (
        "def loss(x, ws):\n    last = 0\n    for _ in ws:\n        x = x + last\n"
        "        for w in ws:\n            last = w * x\n    return x\n"
    )
    (function,) = ast.parse(text).body
    assert loop_variables(function.body[1].body[1], function).results == ("last",)
