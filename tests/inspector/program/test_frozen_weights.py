"""Frozen weights beside the batch, by what a forward pass does with them."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject

optax = pytest.importorskip("optax")

D, R, ROWS = 64, 4, 48


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def kinds(loss, trained, *others):
    """Return the kind of each input of a step that trains the first argument, by path."""
    tx = optax.adam(1e-3)

    def step(trained, state, *others):
        updates, state = tx.update(jax.grad(loss)(trained, *others), state)
        return optax.apply_updates(trained, updates), state

    program = subject(
        Question(step, (trained, jax.eval_shape(tx.init, trained), *others), {})
    ).program
    return {role.path: role.kind for role in program.inputs if role.path.startswith("others")}


def adapted(lora, base, x):
    x = jnp.tanh(x @ base["up"] + x @ lora["a"] @ lora["b"])
    return jnp.mean((x * base["scale"] + base["bias"]) ** 2)


LORA = {"a": f32(D, R), "b": f32(R, D)}
BASE = {"up": f32(D, D), "scale": f32(D), "bias": f32(D)}


@pytest.mark.parametrize("rows", [1, ROWS])
def test_what_is_contracted_with_what_the_batch_becomes_is_a_weight(rows):
    assert kinds(adapted, LORA, BASE, f32(rows, D)) == {
        "others[0]['up']": "frozen-weights",
        "others[0]['scale']": "frozen-weights",
        "others[0]['bias']": "frozen-weights",
        "others[1]": "batch",
    }


def test_a_batch_that_is_normalised_first_is_no_weight():
    def loss(params, x, y):
        normal = (x - x.mean(0)) * (jax.lax.rsqrt(x.var(0) + 1e-5) * params["scale"])
        return jnp.mean((x + (normal + params["bias"]) @ params["w"] - y) ** 2)

    params = {"scale": f32(D), "bias": f32(D), "w": f32(D, D)}
    assert kinds(loss, params, f32(ROWS, D), f32(ROWS, D)) == {
        "others[0]": "batch",
        "others[1]": "batch",
    }


def test_a_scanned_base_with_its_embedding():
    def loss(lora, base, tokens):
        def layer(x, w):
            own, a, b = w
            return x + jax.nn.gelu(x @ own["up"] + x @ a @ b) @ own["down"], None

        x, _ = lax.scan(layer, base["table"][tokens], (base["layers"], lora["a"], lora["b"]))
        logits = x @ base["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

    layers = {"up": f32(3, D, 2 * D), "down": f32(3, 2 * D, D)}
    base = {"table": f32(100, D), "layers": layers, "head": f32(D, 100)}
    found = kinds(loss, {"a": f32(3, D, R), "b": f32(3, R, 2 * D)}, base, i32(2, ROWS))
    assert found.pop("others[1]") == "batch"
    assert set(found.values()) == {"frozen-weights"}


def test_weights_that_trained_ones_are_added_to():
    def loss(lora, base, x):
        return jnp.mean((x @ (base["up"] + lora["a"] @ lora["b"])) ** 2)

    found = kinds(loss, LORA, {"up": f32(D, D)}, f32(ROWS, D))
    assert found == {"others[0]['up']": "frozen-weights", "others[1]": "batch"}


def test_quantized_weights():
    def loss(lora, base, x):
        w = base["q"].astype(jnp.float32) * base["scale"]
        return jnp.mean((x @ w + x @ lora["a"] @ lora["b"]) ** 2)

    base = {"q": jax.ShapeDtypeStruct((D, D), jnp.int8), "scale": f32(D)}
    found = kinds(loss, LORA, base, f32(ROWS, D))
    assert found["others[0]['q']"] == found["others[0]['scale']"] == "frozen-weights"
    assert found["others[1]"] == "batch"


def test_a_teacher_that_is_not_differentiated():
    def loss(student, teacher, images):
        target = jnp.tanh(images @ teacher["w"] + teacher["b"]) @ teacher["head"]
        return jnp.mean((images @ student - lax.stop_gradient(target)) ** 2)

    teacher = {"w": f32(D, D), "b": f32(D), "head": f32(D, R)}
    found = kinds(loss, f32(D, R), teacher, f32(ROWS, D))
    assert found.pop("others[1]") == "batch"
    assert set(found.values()) == {"frozen-weights"}


def test_a_frozen_convolution_before_a_trained_one():
    def loss(trained, frozen, images):
        def conv(x, w):
            return lax.conv_general_dilated(x, w, (1, 1), "SAME")

        return jnp.mean(conv(conv(images, trained["first"]), frozen) ** 2 + conv(images, frozen))

    found = kinds(loss, {"first": f32(3, 3, 3, 3)}, f32(3, 3, 3, 3), f32(2, 3, 8, 8))
    assert found == {"others[0]": "frozen-weights", "others[1]": "batch"}


def test_a_batch_with_targets_masks_and_weights_of_its_rows():
    def loss(params, batch):
        hidden = jnp.tanh(batch["x"] @ params["w"])
        hidden = jnp.where(batch["keep"][:, None], hidden, 0.0) * batch["rows"][:, None]
        error = hidden @ params["v"] - batch["y"]
        onehot = batch["labels"][:, None] == jnp.arange(R)
        return jnp.mean(error**2 * onehot)

    batch = {"x": f32(ROWS, D), "y": f32(ROWS, R), "rows": f32(ROWS), "labels": i32(ROWS)}
    batch["keep"] = jax.ShapeDtypeStruct((ROWS,), jnp.bool_)
    found = kinds(loss, {"w": f32(D, D), "v": f32(D, R)}, batch)
    assert set(found.values()) == {"batch"}


def test_a_mask_beside_frozen_weights_is_the_batch():
    def loss(lora, base, x):
        hidden = x @ base["up"] + x @ lora["a"] @ lora["b"]
        return jnp.mean(jnp.where(base["keep"][:, None], hidden, 0.0) ** 2)

    base = {"up": f32(D, D), "keep": jax.ShapeDtypeStruct((ROWS,), jnp.bool_)}
    found = kinds(loss, LORA, base, f32(ROWS, D))
    assert found["others[0]['up']"] == "frozen-weights"
    assert found["others[0]['keep']"] == "batch"


def test_frozen_layers_beside_the_trained_ones():
    def step(params, x):
        def loss(head):
            return jnp.mean((jnp.tanh(x @ params["body"]) @ head) ** 2)

        return {**params, "head": params["head"] - jax.grad(loss)(params["head"])}

    args = {"body": f32(D, D), "head": f32(D, R)}, f32(ROWS, D)
    program = subject(Question(jax.jit(step, donate_argnums=0), args, {})).program
    assert [r.kind for r in program.inputs] == ["frozen-weights", "parameters", "batch"]
    assert [r.kind for r in program.outputs] == ["frozen-weights", "parameters"]


def test_what_a_forward_pass_writes_is_no_frozen_weight():
    def step(params, queue, x):
        def loss(params):
            features = x @ params
            written = lax.dynamic_update_slice(queue, features, (0, 0))
            return jnp.mean(jax.nn.logsumexp(features @ queue.T, axis=1)), written

        gradient, queue = jax.grad(loss, has_aux=True)(params)
        return params - gradient, queue

    program = subject(Question(step, (f32(D, R), f32(4 * D, R), f32(ROWS, D)), {})).program
    assert "frozen-weights" not in [r.kind for r in program.inputs]


def test_a_frozen_backbone_under_a_trained_head():
    def loss(head, backbone, x):
        for w in backbone:
            x = jnp.tanh(x @ w)
        return jnp.mean((x @ head) ** 2)

    found = kinds(loss, f32(D, R), [f32(D, D)] * 3, f32(ROWS, D))
    assert found.pop("others[1]") == "batch"
    assert set(found.values()) == {"frozen-weights"}


def test_what_is_printed_has_no_result():
    def loss(head, backbone, x):
        jax.debug.print("{}", backbone[0, 0])
        return jnp.mean((jnp.tanh(x @ backbone) @ head) ** 2)

    assert kinds(loss, f32(D, R), f32(D, D), f32(ROWS, D))["others[1]"] == "batch"


def alone(*roles):
    return dict(zip(("others[0]", "others[1]", "others[2]"), roles, strict=False))


@pytest.mark.parametrize(
    ("loss", "trained", "others"),
    [
        (lambda p, w, x: jnp.tanh(x @ w) @ p, f32(D, R), [f32(D, D), f32(ROWS, D)]),
        (lambda p, w, x: jnp.tanh(w @ x).T @ p, f32(D, R), [f32(D, D), f32(D, ROWS)]),
        (lambda p, w, x: jnp.tanh(x @ p) @ w, f32(D, D), [f32(D, R), f32(ROWS, D)]),
        (lambda p, w, x: x @ p - lax.stop_gradient(x @ w), f32(D, R), [f32(D, R), f32(ROWS, D)]),
        # A table of positions, along the rows of each example.
        (lambda p, w, x: (x + w) @ p, f32(D, R), [f32(ROWS, D), f32(2, ROWS, D)]),
        (lambda p, w, x: (p[x] + w) @ p.T, f32(100, D), [f32(ROWS, D), i32(2, ROWS)]),
        # The mean of a batch normalisation.
        (lambda p, w, x: (x @ p - w) ** 3, f32(D, D), [f32(D), f32(ROWS, D)]),
    ],
)
def test_one_frozen_array_alone_in_its_argument(loss, trained, others):
    found = kinds(lambda *args: jnp.mean(loss(*args) ** 2), trained, *others)
    assert found == alone("frozen-weights", "batch")


@pytest.mark.parametrize(
    ("loss", "trained", "others"),
    [
        (lambda p, x, y: x @ p - y, f32(D, R), [f32(ROWS, D), f32(ROWS, R)]),
        (lambda p, x, y: (x * y[:, None]) @ p, f32(D, R), [f32(ROWS, D), f32(ROWS)]),
        (lambda p, a, x: (a @ x) @ p, f32(D, R), [f32(ROWS, ROWS), f32(ROWS, D)]),
        (
            lambda p, a, x: jnp.einsum("bi,bij->bj", x, a) @ p,
            f32(D, R),
            [f32(ROWS, D, D), f32(ROWS, D)],
        ),
        (
            lambda p, q, k: jnp.einsum("bqd,bkd->bqk", q, k) @ p,
            f32(9, R),
            [f32(2, ROWS, D), f32(2, 9, D)],
        ),
        (lambda p, x, y: jnp.einsum("bi,bj->bij", x, y) @ p, f32(D, R), [f32(ROWS, D)] * 2),
    ],
)
def test_batches_that_are_multiplied_with_each_other(loss, trained, others):
    found = kinds(lambda *args: jnp.mean(loss(*args) ** 2), trained, *others)
    assert found == alone("batch", "batch")


def test_a_frozen_array_in_a_scan_over_the_steps_of_a_sequence():
    def loss(p, w, xs):
        def cell(h, x):
            h = jnp.tanh(x @ w) @ p + h
            return h, h

        return jnp.mean(lax.scan(cell, jnp.zeros((ROWS, R)), xs)[1] ** 2)

    found = kinds(loss, f32(D, R), f32(D, D), f32(5, ROWS, D))
    assert found == alone("frozen-weights", "batch")
