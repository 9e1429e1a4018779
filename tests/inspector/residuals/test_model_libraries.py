"""Flax linen, Flax nnx and Equinox models: rows point at the model's own code, name the library
call below it, and carry the module path.

The models are `fixtures/inspect/{linen,nnx,equinox}_model.py`.
"""

import functools
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests import where

jax = pytest.importorskip("jax")

import jaxresid  # noqa: E402
from jaxresid.results import Argument, Computed, Literal, Mark  # noqa: E402

FIXTURES = where.FIXTURES / "inspect"
LOSSES = {
    "linen": (
        "loss",
        "loss_library",
        "loss_dropout",
        "loss_scan",
        "loss_scan_remat",
        "loss_scan_names",
        "loss_batch_norm",
    ),
    "nnx": (
        "loss",
        "loss_module",
        "loss_library",
        "loss_dropout",
        "loss_remat",
        "loss_scan",
        "loss_scan_remat",
        "loss_scan_names",
    ),
    "equinox": (
        "loss",
        "loss_library",
        "loss_dropout",
        "loss_remat",
        "loss_scan",
        "loss_scan_remat",
        "loss_scan_names",
    ),
}
CASES = [(library, loss) for library, losses in LOSSES.items() for loss in losses]
PACKAGES = {"linen": "flax", "nnx": "flax", "equinox": "equinox"}
every_loss = pytest.mark.parametrize(("library", "loss"), CASES)
every_library = pytest.mark.parametrize("library", LOSSES)


@pytest.fixture
def tanh(one_minus_square):
    """The primitive that makes the array of gelu's tanh which no other rule of gelu makes."""
    return "one_minus_square" if one_minus_square else "tanh"


@functools.cache
def fixture(library):
    pytest.importorskip(PACKAGES[library])
    name = f"{library}_model"
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def target(library, loss):
    module = fixture(library)
    return getattr(module, loss), getattr(module, f"{loss}_inputs")()


@functools.cache
def report(library, loss):
    fun, inputs = target(library, loss)
    return jaxresid.inspect(fun, has_aux=loss == "loss_batch_norm")(*inputs)


def computed(library, loss):
    """The rows of computed residuals: (residual, origin)."""
    rows = [(r, r.origin) for r in report(library, loss).residuals]
    return [(r, o) for r, o in rows if isinstance(o, Computed)]


def argument_paths(library, loss):
    return [r.origin.path for r in report(library, loss).residuals if r.origin.kind == "argument"]


def on_line(library, loss, code, shape=None):
    """The origins whose location is the line with exactly this text."""
    found = [
        o
        for r, o in computed(library, loss)
        if o.location.code == code and (shape is None or r.aval.shape[-len(shape) :] == shape)
    ]
    assert found, f"no residual at: {code}"
    return found


def line_of(library, code):
    lines = (FIXTURES / f"{library}_model.py").read_text(encoding="utf-8").splitlines()
    at = [n for n, line in enumerate(lines, 1) if line.strip() == code]
    assert len(at) == 1, f"{code!r} is on {len(at)} lines"
    return at[0]


def is_from(location, package):
    return f"/site-packages/{package}/" in Path(location.file).as_posix()


# --- where the rows point -------------------------------------------------------------------------


@pytest.mark.integration
@every_loss
def test_every_row_is_in_the_users_model_and_not_in_a_library(library, loss):
    rows = computed(library, loss)
    assert rows
    for _, origin in rows:
        assert Path(origin.location.file).resolve() == FIXTURES / f"{library}_model.py"
        source = Path(origin.location.file).read_text(encoding="utf-8").splitlines()
        assert source[origin.location.line - 1].strip() == origin.location.code


@pytest.mark.integration
@every_loss
def test_consumers_are_in_the_users_model_too(library, loss):
    for residual in report(library, loss).residuals:
        for consumer in residual.consumers:
            assert Path(consumer.location.file).resolve() == FIXTURES / f"{library}_model.py"


@pytest.mark.integration
@every_loss
def test_the_library_is_shown_where_it_is_not_the_users_line(library, loss):
    for _, origin in computed(library, loss):
        if origin.library is not None:
            assert "/site-packages/" in Path(origin.library.file).as_posix()
            assert is_from(origin.library, PACKAGES[library]) or is_from(origin.library, "jax")


@every_loss
def test_the_stack_leads_from_the_loss_to_the_row(library, loss):
    name = target(library, loss)[0].__name__  # Equinox's one function serves most losses
    for residual, origin in computed(library, loss):
        assert origin.location in origin.stack
        # What is the same in each trip JAX moves out of the loop, without the frames above its
        # body: here a root of a constant, a mean's divisor, a fill.
        if origin.stack[0].function != name:
            assert residual.aval.shape == () or Mark.FREE in residual.marks
            assert loss == "loss_scan"


GELU = {
    "linen": 'x = checkpoint_name(nn.gelu(x), "mlp_hidden")',
    "nnx": 'h = checkpoint_name(nnx.gelu(h), "mlp_hidden")',
    "equinox": "h = self.activation(self.up(x))",
}
UP = {
    "linen": 'x = nn.Dense(4 * self.width, name="up")(x)',
    "nnx": "h = self.up(x)",
    "equinox": "h = self.activation(self.up(x))",
}
SOFTMAX = {
    "linen": "weights = nn.softmax(scores, axis=-1)",
    "nnx": "weights = jax.nn.softmax(scores, axis=-1)",
    "equinox": "weights = jax.nn.softmax(scores, axis=-1)",
}
LAYERS = 3
HIDDEN = (2, 8, 64)
WEIGHTS = (2, 2, 8, 8)


@every_library
def test_gelu_row(library, tanh):
    rows = [o for o in on_line(library, "loss", GELU[library], HIDDEN) if o.primitive == tanh]
    assert len(rows) == LAYERS
    for origin in rows:
        assert origin.location.line == line_of(library, GELU[library])
        assert origin.location.function == "Mlp.__call__"
        assert origin.library.function == "gelu"
        assert is_from(origin.library, "jax")


@every_library
def test_activation_of_a_library_layer_names_that_layer(library):
    rows = [
        o
        for o in on_line(library, "loss", UP[library], HIDDEN)
        if o.library.function.endswith(
            "Linear.__call__" if library != "linen" else "Dense.__call__"
        )
    ]
    assert len(rows) == LAYERS
    for origin in rows:
        assert origin.primitive == "add"  # the bias
        assert is_from(origin.library, PACKAGES[library])
        assert origin.location.function == "Mlp.__call__"


@every_library
def test_softmax_rows(library):
    rows = on_line(library, "loss", SOFTMAX[library], WEIGHTS)
    # Both exp and the quotient are kept.
    assert Counter(o.primitive for o in rows) == {"exp": LAYERS, "div": LAYERS}
    for origin in rows:
        assert origin.location.line == line_of(library, SOFTMAX[library])
        assert origin.location.function == "Attention.__call__"
        assert origin.library.function == "softmax"


@every_library
def test_the_users_einsum_has_its_own_line(library):
    rows = [
        o for _, o in computed(library, "loss") if o.location.code.startswith("mixed = jnp.einsum(")
    ]
    assert [o.primitive for o in rows] == ["dot_general"] * LAYERS
    assert {o.location.function for o in rows} == {"Attention.__call__"}


@every_library
def test_attention_of_the_library_points_at_the_call_of_it(library):
    code = {
        "linen": "x = x + nn.MultiHeadDotProductAttention(self.heads)(h)",
        "nnx": "x = x + self.attention(self.norm1(x))",
        "equinox": "x = x + self.attention(h, h, h)",
    }[library]
    rows = on_line(library, "loss_library", code, WEIGHTS)
    assert {"exp", "div"} <= {o.primitive for o in rows}
    for origin in rows:
        assert origin.location.function == "LibraryBlock.__call__"
        assert is_from(origin.library, PACKAGES[library])
        assert "attention" in origin.library.function


@every_library
def test_layer_norm_points_at_the_block_and_names_the_library(library):
    code = {
        "linen": "x = x + Attention(self.width, self.heads)(nn.LayerNorm()(x))",
        "nnx": "x = x + self.attention(self.norm1(x))",
        "equinox": "x = x + self.attention(jax.vmap(self.norm1)(x))",
    }[library]
    rows = [o for o in on_line(library, "loss", code) if o.primitive == "rsqrt"]
    assert len(rows) == LAYERS
    for origin in rows:
        assert origin.location.function == "Block.__call__"
        assert is_from(origin.library, PACKAGES[library])
        assert "norm" in Path(origin.library.file).name


# --- the module path ------------------------------------------------------------------------------


def scopes(library, loss, code, shape=None):
    return [o.scope for o in on_line(library, loss, code, shape)]


def test_linen_scope_is_the_module_path_with_its_numbers():
    mlp = scopes("linen", "loss", GELU["linen"], HIDDEN)
    assert set(mlp) == {f"Looped/Block_{i}/Mlp_0" for i in range(LAYERS)}
    up = scopes("linen", "loss", UP["linen"], HIDDEN)
    assert up == [f"Looped/Block_{i}/Mlp_0/up" for i in range(LAYERS)]
    softmax = scopes("linen", "loss", SOFTMAX["linen"], WEIGHTS)
    assert set(softmax) == {f"Looped/Block_{i}/Attention_0" for i in range(LAYERS)}


@pytest.mark.parametrize("loss", ["loss_scan", "loss_scan_names"])
def test_linen_scope_goes_through_scan_and_remat(loss):
    [scope] = {o.scope for _, o in computed("linen", loss) if o.name == "mlp_hidden"}
    assert scope == "Scanned/blocks/block/Mlp_0"


def test_linen_scope_inside_a_library_module():
    rows = [o for r, o in computed("linen", "loss_library") if r.aval.shape[-4:] == WEIGHTS]
    assert {o.scope for o in rows} == {"Looped/LibraryBlock_0/MultiHeadDotProductAttention_0"}


# Neither library puts its modules' path on JAX's name stack: it is that of the parameters.
LAYERS_OF = {"nnx": "blocks", "equinox": "layers"}


def numbered(library, module):
    return {f"{LAYERS_OF[library]}[{i}].{module}" for i in range(LAYERS)}


@pytest.mark.parametrize("library", ["nnx", "equinox"])
def test_the_module_path_is_that_of_its_parameters(library, tanh):
    attention = scopes(library, "loss", SOFTMAX[library], WEIGHTS)
    assert set(attention) == numbered(library, "attention")
    gelu = [o for o in on_line(library, "loss", GELU[library], HIDDEN) if o.primitive == tanh]
    assert {o.scope for o in gelu} == numbered(library, "mlp")
    norm = {o.scope for _, o in computed(library, "loss") if o.primitive == "rsqrt"}
    assert norm >= numbered(library, "norm1") | numbered(library, "norm2")
    up = {o.scope for _, o in computed(library, "loss") if o.scope.endswith(".up")}
    assert up == numbered(library, "mlp.up")


@pytest.mark.parametrize("library", ["nnx", "equinox"])
def test_the_module_path_goes_through_scan_and_remat(library):
    [scope] = {o.scope for _, o in computed(library, "loss_scan_names") if o.name == "mlp_hidden"}
    assert scope == f"{LAYERS_OF[library]}.mlp"


@pytest.mark.parametrize("library", ["nnx", "equinox"])
def test_the_path_of_a_library_s_module(library):
    rows = [o for r, o in computed(library, "loss_library") if r.aval.shape[-4:] == WEIGHTS]
    assert {o.scope for o in rows} == {f"{LAYERS_OF[library]}[0].attention"}


@every_library
def test_einsum_is_no_module(library):
    # jnp.einsum names its scope after its specification.
    for loss in ("loss", "loss_library"):
        assert not [o.scope for _, o in computed(library, loss) if "->" in o.scope]


@every_library
def test_code_outside_a_module_has_no_scope(library):
    assert set(scopes(library, "loss", line_in_loss(library))) == {""}


def line_in_loss(library):
    return {
        "linen": "log_probs = nn.log_softmax(logits)",
        "nnx": "log_probs = jax.nn.log_softmax(logits)",
        "equinox": "log_probs = jax.nn.log_softmax(logits)",
    }[library]


# --- loops and checkpoints ------------------------------------------------------------------------


def encloses(origin):
    """`within` without the calls of jit and without vmap."""
    return [w for w in origin.within if not w.startswith(("jit ", "vmap"))]


@every_library
def test_scan_is_in_within_and_stacks_the_trips(library, tanh):
    rows = [
        (r, o)
        for r, o in computed(library, "loss_scan")
        if o.location.code == GELU[library] and o.primitive == tanh
    ]
    [(residual, origin)] = rows
    assert encloses(origin) == ["scan ×3"]
    assert residual.trips == LAYERS
    assert residual.aval.shape == (LAYERS, *HIDDEN)
    assert residual.nbytes == LAYERS * 2 * 8 * 64 * 4


@every_library
def test_scanned_and_looped_keep_the_same_activations(library):
    def bytes_of(loss, trips):
        found = [
            r.nbytes
            for r, o in computed(library, loss)
            if o.location.function in ("Mlp.__call__", "Attention.__call__")
            and r.trips == trips
            and r.nbytes > 1024 * trips
        ]
        return sum(found)

    assert bytes_of("loss_scan", LAYERS) == bytes_of("loss", 1) > 0


@every_library
def test_checkpoint_in_scan_keeps_the_carry_alone(library):
    kept = [(r, o) for r, o in computed(library, "loss_scan_remat") if r.trips > 1]
    [(residual, origin)] = kept
    assert encloses(origin) == ["scan ×3", "remat"]
    assert residual.aval.shape == (LAYERS, 2, 8, 16)
    assert Mark.CARRY in residual.marks
    assert origin.location.function == "Block.__call__"
    assert {c.phase for c in residual.consumers} == {"recompute"}


@every_library
def test_policy_by_name_keeps_the_named_value_and_the_carry(library):
    kept = {o.name: (r, o) for r, o in computed(library, "loss_scan_names") if r.trips > 1}
    assert set(kept) == {None, "mlp_hidden"}
    residual, origin = kept["mlp_hidden"]
    assert residual.aval.shape == (LAYERS, *HIDDEN)
    assert encloses(origin) == ["scan ×3", "remat"]
    assert origin.primitive == "mul"  # seen through the name: the last product of gelu
    assert origin.location.code == GELU[library]
    assert "checkpoint_name" in origin.named_at.code
    assert [c.location.function for c in residual.consumers] == ["Mlp.__call__"]
    carry = kept[None][0]
    assert carry.marks == (Mark.CARRY,)


@pytest.mark.parametrize("library", ["nnx", "equinox"])
def test_checkpoint_in_a_python_loop(library):
    rows = [o for _, o in computed(library, "loss_remat") if "remat" in o.within]
    assert {o.location.function for o in rows} == {"Block.__call__"}
    # Block n's output is what block n + 1 recomputes from; nnx's last one feeds the final norm,
    # which keeps other things, Equinox's last one the head.
    assert len(rows) == {"nnx": LAYERS - 1, "equinox": LAYERS}[library]
    assert {o.primitive for o in rows} == {"add"}


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("library", "loss", "path"),
    [
        ("linen", "loss", "params['params']['Block_1']['Mlp_0']['up']['kernel']"),
        ("linen", "loss_scan", "params['params']['blocks']['block']['Mlp_0']['up']['kernel']"),
        ("linen", "loss_batch_norm", "params['stem']['kernel']"),
        ("linen", "loss_batch_norm", "images"),
        ("nnx", "loss", "params['blocks'][1]['mlp']['up']['kernel']"),
        ("nnx", "loss_module", "model.blocks[1].mlp.up.kernel"),
        ("nnx", "loss_scan", "params['blocks']['mlp']['up']['kernel']"),
        ("equinox", "loss", "model.layers[1].mlp.up.weight"),
        ("equinox", "loss_library", "model.layers[0].attention.query_proj.weight"),
        ("equinox", "loss_scan", "model.layers.mlp.up.weight"),
    ],
)
def test_paths_read_like_the_users_code(library, loss, path):
    assert path in argument_paths(library, loss)


@every_loss
def test_kept_views_of_parameters_name_the_parameter(library, loss):
    paths = report(library, loss).target.differentiated
    for _, origin in computed(library, loss):
        if origin.path is not None:
            assert origin.path in paths


def test_settings_of_an_equinox_module_are_not_differentiated():
    # A dropout's rate is a Python float in the module; eqx.filter_grad takes arrays alone.
    differentiated = report("equinox", "loss_dropout").target.differentiated
    assert "model.layers[0].mlp.up.weight" in differentiated
    assert [p for p in differentiated if "dropout" in p] == []
    assert report("equinox", "loss_dropout").warnings == ()


# --- dropout, batch norm --------------------------------------------------------------------------


@every_library
def test_dropout_keeps_its_mask(library):
    code = {
        "linen": "x = nn.Dropout(self.dropout, deterministic=not train)(x)",
        "nnx": "h = self.dropout(h, rngs=rngs)",
        "equinox": "h = self.dropout(h, key=key)",
    }[library]
    masks = [
        (r, o)
        for r, o in computed(library, "loss_dropout")
        if r.aval.dtype == "bool" and r.aval.shape and o.location.code == code
    ]
    [(mask, origin)] = masks
    assert mask.aval.shape == HIDDEN
    assert origin.primitive == "lt"
    assert "jit _bernoulli" in origin.within
    assert origin.library.function == "Dropout.__call__"
    assert is_from(origin.library, PACKAGES[library])
    assert not [p for p in argument_paths(library, "loss_dropout") if p == "key"]


def test_batch_norm_statistics_are_not_kept():
    rows = computed("linen", "loss_batch_norm")
    norm = [o for _, o in rows if o.scope == "ConvNet/BatchNorm_0"]
    assert {o.location.code for o in norm} == {
        "x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)"
    }
    assert {o.path for o in norm} == {None, "params['BatchNorm_0']['scale']"}
    assert not [
        p for p in argument_paths("linen", "loss_batch_norm") if p.startswith("batch_stats")
    ]
    relu = {o.primitive for o in on_line("linen", "loss_batch_norm", "x = nn.relu(x)")}
    assert relu == {"gt", "broadcast_in_dim"}


# --- numbers --------------------------------------------------------------------------------------


def concrete(leaf):
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key(0)
    values = np.random.default_rng(0).uniform(0.1, 1, leaf.shape)
    return jax.numpy.asarray(values, leaf.dtype)


def kept_by_jax(fun, inputs, has_aux, jit):
    """The arrays in what `jax.vjp` returns for real arrays."""
    leaves, tree = jax.tree.flatten(inputs)
    leaves = [concrete(leaf) for leaf in leaves]
    which = [
        i
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
    ]

    def call(*params):
        found = list(leaves)
        for i, param in zip(which, params, strict=True):
            found[i] = param
        return fun(*jax.tree.unflatten(tree, found))

    def vjp(*params):
        return jax.vjp(call, *params, has_aux=has_aux)[1]

    quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    run = jax.jit(vjp, compiler_options=quick) if jit else vjp
    return jax.tree.leaves(run(*(leaves[i] for i in which)))


def multiset(arrays):
    return Counter((str(a.dtype), a.shape, a.nbytes) for a in arrays)


def reported(library, loss):
    residuals = report(library, loss).residuals
    return Counter((r.aval.dtype, r.aval.shape, r.nbytes) for r in residuals)


# Op by op, JAX copies a value that several operations keep, so a model whose query, key and value
# layers read one input keeps it three times: compiled, as in a training step, it does not.
OP_BY_OP = [("linen", "loss_scan_names"), ("nnx", "loss"), ("equinox", "loss_scan_names")]


@pytest.mark.integration
@every_loss
def test_the_rows_are_the_arrays_that_jax_keeps(library, loss):
    fun, inputs = target(library, loss)
    jit = (library, loss) not in OP_BY_OP
    kept = kept_by_jax(fun, inputs, loss == "loss_batch_norm", jit)
    assert reported(library, loss) == multiset(kept)


@every_loss
def test_inputs_are_abstract(library, loss):
    _, inputs = target(library, loss)
    assert not [leaf for leaf in jax.tree.leaves(inputs) if isinstance(leaf, jax.Array)]
    kinds = {type(r.origin) for r in report(library, loss).residuals}
    assert kinds <= {Argument, Computed, Literal}  # no array was closed over


@every_library
def test_gelu_keeps_one_array_less_where_tanh_does(library, one_minus_square):
    rows = on_line(library, "loss", GELU[library], HIDDEN)
    made = Counter(o.primitive for o in rows if o.library.function == "gelu")
    tanh = {"one_minus_square": LAYERS} if one_minus_square else {"tanh": LAYERS, "sub": LAYERS}
    assert made == {"mul": 3 * LAYERS, **tanh}
