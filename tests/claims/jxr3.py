"""What the rules about names claim, executed."""

import importlib

import jax
import jax.numpy as jnp
from rule_examples import example

from claims import Claim, count
from claims import saved as leaves_of_vjp
from jaxresid.linter.rules import named_nonlinearity_output as nonlinearity

policies = jax.checkpoint_policies
W = jnp.linspace(-1.0, 1.0, 64).reshape(8, 8)
X = jnp.linspace(0.1, 1.0, 32).reshape(4, 8)
ROW = ("float32", (4, 8))


def run(source):
    namespace = {"__name__": "example"}
    exec(compile(source, "<example>", "exec"), namespace)
    return namespace


def changed(source, old, new):
    assert old in source
    return run(source.replace(old, new))


# The first version that has remat3 does not show what it saves in the leaves of the vjp.
HIDDEN = bool(getattr(jax.config, "jax_remat3", False)) and jax.__version_info__ < (0, 11)


class Unknown:
    """Equals every list of saved values, where they cannot be seen."""

    __hash__ = None

    def __eq__(self, other):
        return isinstance(other, (list, Unknown))


def saved(function, *args):
    return Unknown() if HIDDEN else leaves_of_vjp(function, *args)


def total(function):
    return lambda *args: jnp.sum(function(*args))


def dots(function, *args):
    """How many matmuls the gradient runs."""
    return count(jax.grad(total(function), tuple(range(len(args)))), "dot_general", *args)


# -- JXR301, JXR302 ---------------------------------------------------------------------------


def undefined_names_save_nothing(namespace):
    source = example("JXR301", "one_of_a_constant_tuple").source
    assert saved(namespace["layer"], W, X) == [ROW]
    undefined = changed(source, '("mlp", "attention")', '("mpl", "attention")')
    assert saved(undefined["layer"], W, X) == []
    full = changed(source, "policy=policy", "policy=None")
    assert dots(undefined["layer"], W, X) == dots(full["layer"], W, X)
    assert dots(namespace["layer"], W, X) == dots(full["layer"], W, X) - 1


def undefined_exclusions_leave_nothing_out(namespace):
    assert saved(namespace["layer"], W, X) == [ROW]
    right = changed(example("JXR301", "misspelt_exception").source, '"logit_out"', '"logits_out"')
    assert saved(right["layer"], W, X) == []


def unmentioned_names_do_nothing(namespace):
    # The policy has one name; that of the other value changes nothing.
    assert saved(namespace["block"], W, X) == [ROW]


# -- JXR303 -----------------------------------------------------------------------------------


def discarded_names_are_not_saved(namespace):
    assert saved(namespace["block"], W, X) == []
    fixed = run(example("JXR303").fixed)
    assert saved(fixed["block"], W, X) == [ROW]
    assert dots(fixed["block"], W, X) == dots(namespace["block"], W, X) - 1


# -- JXR304 -----------------------------------------------------------------------------------


def stale_values_are_recomputed(namespace):
    rebound = run(example("JXR304", "good").source)
    unnamed = changed(example("JXR304").source, 'checkpoint_name(y, "a")', "y")
    assert dots(namespace["block"], W, X) == dots(unnamed["block"], W, X)
    assert dots(rebound["block"], W, X) == dots(unnamed["block"], W, X) - 1


def unread_names_are_not_saved(namespace):
    assert saved(namespace["block"], W, X) == []
    read = changed(
        example("JXR304", "named_value_is_never_read").source, "jnp.sin(y)", "jnp.sin(named)"
    )
    assert saved(read["block"], W, X) == [ROW]


def adding_the_stale_value_to_the_result_is_harmless(_):
    source = example("JXR304", "added_to_the_result").source
    right = changed(source, "out = y + ", "out = z + ")
    assert dots(run(source)["block"], W, X) == dots(right["block"], W, X)
    assert saved(run(source)["block"], W, X) == saved(right["block"], W, X)


# -- JXR305 -----------------------------------------------------------------------------------


def naming(function, where):
    from jax.ad_checkpoint import checkpoint_name

    def block(w, v, x):
        y = x @ w
        y = checkpoint_name(y, "a") if where == "input" else y
        z = function(y)
        z = checkpoint_name(z, "a") if where == "output" else z
        return jnp.sin(z @ v)

    return jax.checkpoint(block, policy=policies.save_only_these_names("a"))


def nonlinearities_recompute_the_matmul(_):
    for qualname in sorted(nonlinearity._NONLINEARITIES):
        module, _, name = qualname.rpartition(".")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        without, inputs, outputs = (
            dots(naming(function, where), W, W, X) for where in (None, "input", "output")
        )
        assert outputs == without, qualname
        assert inputs == without - 1, qualname


def linear_functions_do_not(_):
    for function in (jnp.negative, jax.nn.identity, jax.lax.neg):
        assert dots(naming(function, "output"), W, W, X) == dots(naming(function, "input"), W, W, X)


def named_outputs_do_not_save_the_matmul(name):
    def check(namespace):
        source = example("JXR305", name).source
        unnamed = changed(source, 'these_names("a")', 'these_names("b")')
        assert dots(namespace["block"], W, W, X) == dots(unnamed["block"], W, W, X)
        assert saved(namespace["block"], W, W, X) == [ROW]

    return check


def named_inputs_do(namespace):
    right = run(example("JXR305", "good").source)
    assert dots(right["block"], W, W, X) == dots(namespace["block"], W, W, X) - 1
    assert saved(right["block"], W, W, X) == [ROW]


def named_layer_outputs_do_not_save_the_matmul(namespace):
    from flax import linen as nn

    def gradient_dots(names):
        policy = policies.save_only_these_names(*names)
        model = nn.remat(namespace["Mlp"], policy=policy)()
        params = model.init(jax.random.key(0), X)
        return dots(lambda p, x: jnp.sin(model.apply(p, x)), params, X)

    assert gradient_dots(["a", "b"]) == gradient_dots([]) == gradient_dots(["a"])


# -- JXR306 -----------------------------------------------------------------------------------

WS = jnp.stack([W, W * 0.5, W * 0.25])


def hosted(function, *args):
    return str(jax.make_jaxpr(jax.grad(function, (0, 1)))(*args)).count("<host>")


def offloaded_outputs_stay_on_the_device(namespace):
    assert hosted(namespace["loss"], WS, X) == 0


def offloaded_inputs_go_to_the_host(_):
    right = run(example("JXR306", "good").source)
    assert hosted(right["loss"], WS, X) > 0


def same_without(old, new, *args, name):
    """The example does what it does with `old` replaced by `new`."""

    def check(namespace):
        other = changed(example("JXR306", name).source, old, new)
        assert saved(namespace["loss"], *args) == saved(other["loss"], *args)
        assert dots(namespace["loss"], *args) == dots(other["loss"], *args)

    return check


def names_inside_are_saved(namespace):
    source = example("JXR306", "layers_in_a_loop").source.replace(
        'checkpoint_name(jnp.sin(h @ w), "out")', "jnp.sin(h @ w)"
    )
    inside = changed(source, "jnp.sin(x @ w)", 'jnp.sin(checkpoint_name(x @ w, "out"))')
    assert dots(inside["loss"], list(WS), X) < dots(namespace["loss"], list(WS), X)


def named_module_outputs_do_nothing(namespace):
    def gradient_dots(namespace):
        model = namespace["Model"]()
        params = model.init(jax.random.key(0), X)
        return dots(model.apply, params, X)

    other = changed(
        example("JXR306", "linen_blocks_in_a_loop").source,
        'checkpoint_name(jnp.sin(nn.Dense(8)(x)), "out")',
        "jnp.sin(nn.Dense(8)(x))",
    )
    assert gradient_dots(namespace) == gradient_dots(other)


# -- JXR308 -----------------------------------------------------------------------------------


def saved_name(function, *args):
    layer = jax.checkpoint(
        lambda x, w: jnp.sin(function(jnp.sin(x), w, *args)),
        policy=policies.save_only_these_names("a"),
    )
    return saved(layer, X, W)


def names_of_the_primal_are_not_saved(namespace):
    assert saved_name(namespace["act"]) == []


def names_of_the_primal_are_not_saved_by_a_rule_that_calls_it(namespace):
    assert saved_name(namespace["act"], 2.0) == []


def names_of_the_forward_rule_are_saved(_):
    right = run(example("JXR308", "good").source)
    assert saved_name(right["act"]) == [ROW]


CLAIMS = {
    "JXR301": (
        Claim(undefined_names_save_nothing, example="one_of_a_constant_tuple"),
        Claim(undefined_exclusions_leave_nothing_out, example="misspelt_exception"),
    ),
    "JXR302": (Claim(unmentioned_names_do_nothing, example="offloading_policy"),),
    "JXR303": (Claim(discarded_names_are_not_saved),),
    "JXR304": (
        Claim(stale_values_are_recomputed),
        Claim(unread_names_are_not_saved, example="named_value_is_never_read"),
        Claim(adding_the_stale_value_to_the_result_is_harmless),
    ),
    "JXR305": (
        *(
            Claim(named_outputs_do_not_save_the_matmul(name), example=name)
            for name in ("bad", "exp_of_an_einsum", "softmax_of_shifted_scores")
        ),
        Claim(named_inputs_do),
        Claim(
            named_layer_outputs_do_not_save_the_matmul,
            example="linen_layers_of_setup",
            needs=("flax",),
        ),
        Claim(nonlinearities_recompute_the_matmul),
        Claim(linear_functions_do_not),
    ),
    "JXR306": (
        Claim(offloaded_outputs_stay_on_the_device),
        Claim(offloaded_inputs_go_to_the_host, since=(0, 7, 1), remat3=False),
        Claim(offloaded_inputs_go_to_the_host, since=(0, 12), remat3=True),
        Claim(
            same_without("policy=policy", "policy=None", WS, X, name="bound_before_it_is_returned"),
            example="bound_before_it_is_returned",
        ),
        Claim(
            same_without('"out")  # !', '"other")', list(WS), X, name="layers_in_a_loop"),
            example="layers_in_a_loop",
        ),
        Claim(names_inside_are_saved, example="layers_in_a_loop"),
        Claim(named_module_outputs_do_nothing, example="linen_blocks_in_a_loop", needs=("flax",)),
    ),
    "JXR308": (
        Claim(names_of_the_primal_are_not_saved),
        Claim(
            names_of_the_primal_are_not_saved_by_a_rule_that_calls_it, example="nondiff_argument"
        ),
        Claim(names_of_the_primal_are_not_saved, example="function_given_to_custom_vjp"),
        Claim(names_of_the_forward_rule_are_saved, remat3=False),
    ),
}
