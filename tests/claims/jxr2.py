"""JXR2: what policies keep, and which mistakes in them raise."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from rule_examples import example

from claims import Claim, count, saved

cp = jax.checkpoint_policies
W = jnp.linspace(0.1, 1.0, 16).reshape(4, 4)
X = jnp.linspace(0.1, 1.0, 12).reshape(3, 4)
HOST = {"offload_src": "device", "offload_dst": "pinned_host"}


def named(w, x):
    return jnp.cos(checkpoint_name(jnp.sin(x @ w), "hidden")).sum()


def dots(w, x):
    return jnp.cos(jnp.sin(x @ w) @ w).sum()


def gradient(fun):
    return jax.grad(lambda w: jnp.sum(fun(w, X)))(W)


def kept(policy, fun=named):
    return saved(jax.checkpoint(fun, policy=policy), W, X)


def offloaded(policy, fun=named):
    """How many residuals go to the host."""
    block = jax.checkpoint(fun, policy=policy)
    jaxpr = jax.make_jaxpr(lambda w, x: jax.vjp(block, w, x)[1])(W, X)
    return sum("<host>" in str(v.aval) for v in jaxpr.jaxpr.outvars)


def raises(error, match=None):
    """Checks that a block runs forward, and raises once it is differentiated."""

    def check(block):
        block(W, X)
        with pytest.raises(error, match=match):
            gradient(block)

    return check


def at_once(error, call, match=None):
    """A claim's check: calling something of the module raises."""

    def check(module):
        with pytest.raises(error, match=match):
            call(module)

    return check


# -- JXR201 ----------------------------------------------------------------------------------

uncalled = raises(TypeError, "unexpected keyword argument")


def uncalled_factory(module):
    uncalled(module["block"])
    layer = module["layer"]
    gradient(jax.checkpoint(layer, policy=cp.save_only_these_names("hidden")))


def uncalled_factory_in_alias(module):
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        gradient(lambda w, x: module["run"](lambda w, x: jnp.sin(x @ w), w, x, on=True))


def uncalled_factory_in_table(module):
    uncalled(jax.checkpoint(dots, policy=module["policy_for"]("names")))
    assert len(kept(module["policy_for"]("dots"), dots)) == 2


def uncalled_factory_elsewhere(module):
    uncalled(jax.checkpoint(dots, policy=module["policy_for"]("names")))
    uncalled(jax.checkpoint(dots, policy=module["either"]))


# -- JXR202 ----------------------------------------------------------------------------------


def nothing_called(module):
    assert cp.nothing_saveable() is False
    assert saved(lambda w, x: module["run"](named, w, x), W, X) == kept(cp.nothing_saveable) == []


def no_names_save_nothing(_):
    assert kept(cp.save_only_these_names()) == []


def nothing_called_in_remat3(module):
    with pytest.raises(TypeError, match="not callable"):
        gradient(lambda w, x: module["run"](named, w, x))


def nothing_named(module):
    assert saved(lambda w, x: module["run"](named, w, x), W, X) == []


def dots_named(module):
    assert len(saved(lambda w, x: module["run"](dots, w, x), W, X)) == 2


# -- JXR213 ----------------------------------------------------------------------------------


def a_misspelt_name_recomputes_everything(module):
    for name in ("dots_savable", "nothing_saveable"):
        block = module["block"](dots, name)
        assert saved(block, W, X) == kept(None, dots) == []
    assert len(saved(module["block"](dots, "dots_saveable"), W, X)) == 2


def a_misspelt_name_raises(error):
    def check(module):
        with pytest.raises(error):
            module["block"](dots, "dots_savable")

    return check


def a_table_gives_none(module):
    assert saved(module["block"](dots, "ful"), W, X) == []
    assert len(saved(module["block"](dots, "dots"), W, X)) == 2


# -- JXR203 ----------------------------------------------------------------------------------


def attn(w, x):
    return jnp.cos(checkpoint_name(jnp.sin(x @ w), "attn")).sum()


def tuple_matches_nothing(module):
    assert kept(module["policy"], attn) == []


def unpacked_matches(module):
    assert len(kept(module["policy"], attn)) == 1


def tuple_excepts_nothing(module):
    assert len(kept(module["but"](module["NAMES"]), attn)) == 1
    assert kept(module["but"](*module["NAMES"]), attn) == []


def other_collections(module):
    config = SimpleNamespace(names=["attn"])
    factory = cp.save_only_these_names
    assert kept(factory(tuple(config.names)), attn) == []
    assert kept(factory(frozenset(config.names)), attn) == []
    assert len(kept(factory(*frozenset(config.names)), attn)) == 1
    with pytest.raises(TypeError, match="unhashable"):
        factory(set(config.names))
    module["choose"](config, attn)


def generator_matches_nothing(module):
    assert kept(module["kept"](SimpleNamespace(names=["attn"])), attn) == []


def letters_match_nothing(module):
    assert kept(module["policy"]) == []


def letter_matches(_):
    policy = cp.save_and_offload_only_these_names(
        names_which_can_be_saved="h", names_which_can_be_offloaded=[], **HOST
    )
    assert len(kept(policy, lambda w, x: jnp.cos(checkpoint_name(jnp.sin(x @ w), "h")).sum())) == 1


def name_in_list_matches(module):
    assert len(kept(module["policy"])) == 1


def goes_to_host(module):
    assert offloaded(module["policy"]) == 1


# -- JXR205 ----------------------------------------------------------------------------------


def everything_is_no_checkpoint(module):
    block, run = module["block"], module["run"]
    assert saved(run, W, X) == saved(block, W, X) != []
    assert len(kept(cp.dots_saveable, block)) < len(saved(block, W, X))


def everything_by_decorator(module):
    assert saved(module["block"], W, X) == saved(lambda w, x: jnp.sin(x @ w), W, X) != []


def everything_in_linen(module):
    model = module["Stack"]()
    params = model.init(jax.random.key(0), X)
    primitive = "call_hi_primitive" if getattr(jax.config, "jax_remat3", False) else None
    names = [primitive] if primitive else ["remat2", "checkpoint", "remat"]
    assert sum(count(model.apply, n, params, X) for n in names) == 1


def outer_saves_nothing(module):
    layer = module["layer"]
    assert len(kept(cp.dots_saveable, layer)) == 1
    assert saved(module["block"], W, X) == []


def outer_with_policy(module):
    @functools.partial(jax.checkpoint, policy=cp.dots_saveable)
    def block(w, x):
        return jnp.cos(module["layer"](w, x) @ w)

    assert len(saved(block, W, X)) == 2


def outer_names_win(module):
    layer, block = module["layer"], module["block"]
    assert len(saved(layer, W, X)) == 1
    assert len(saved(block, W, X)) == 1
    both = jax.checkpoint(
        lambda w, x: jnp.cos(checkpoint_name(jnp.cos(layer(w, x) @ w), "outer")),
        policy=cp.save_only_these_names("inner", "outer"),
    )
    assert len(saved(both, W, X)) == 2


def outer_nothing_wins(module):
    assert saved(module["block"], W, X) == []
    assert len(saved(module["loss"], W, X)) > 1


# -- JXR207 ----------------------------------------------------------------------------------


def primitive_is_no_string(module):
    assert saved(module["block"], W, X) == []


def primitive_by_name(module):
    assert len(saved(module["block"], W, X)) == 1


def wrong_signature(module):
    raises(TypeError, "unexpected keyword argument")(module["block"])
    raises(TypeError, "positional argument")(module["narrow"])


def not_among_strings(module):
    # `not in` is always true, so this policy refuses everything.
    block = jax.checkpoint(named, policy=module["keep"])
    assert saved(block, W, X) == []


def among_names(module):
    assert len(kept(module["keep"])) == 1


def not_a_bool(module):
    error = (TypeError, AssertionError)
    raises(error)(module["block"])
    raises(error)(module["other"])


def string_in_primitive(module):
    with pytest.raises(TypeError, match="not iterable"):
        gradient(lambda w, x: module["run"](named, w, x))


def string_in_name(module):
    assert len(saved(lambda w, x: module["run"](named, w, x), W, X)) == 1


# -- JXR208 ----------------------------------------------------------------------------------


def excepted_is_saved(module):
    found = saved(module["block"], W, X)
    assert found == kept(cp.everything_saveable) == saved(named, W, X)
    assert len(found) == 2
    assert kept(cp.save_any_names_but_these("hidden")) == []


# -- JXR214 ----------------------------------------------------------------------------------


def no_block_is_checkpointed(module):
    """With the policy's word nothing is computed twice, as without a checkpoint."""
    net, x = module["Net"], jnp.ones((2, 8))
    weights = net().init(jax.random.key(0), x)

    def products(word):
        model = net(remat_policy=word)
        return count(jax.grad(lambda w: model.apply(w, x).sum()), "dot_general", weights)

    assert products("minimal") == products("none") < products("full")


def dots_are_computed_once(branch):
    """The branch that chooses the policy leaves the layers plain; the other recomputes."""

    def check(module):
        def products(*words):
            def loss(w, x):
                return module["forward"](lambda w, x: jnp.sin(x @ w) @ w, [w, w], x, *words).sum()

            return count(jax.grad(loss), "dot_general", W, X)

        chosen, other = branch
        assert products(chosen) < products(other)

    return check


CLAIMS: dict[str, tuple[Claim, ...]] = {
    "JXR201": (
        Claim(uncalled_factory),
        Claim(lambda m: uncalled(m["block"]), example="partial_of_a_decorator"),
        Claim(uncalled_factory_in_alias, example="alias_and_conditional_expression"),
        Claim(uncalled_factory_in_table, example="keywords_of_dict"),
        Claim(uncalled_factory_elsewhere, example="returned_by_match"),
    ),
    "JXR202": (
        Claim(nothing_called, remat3=False),
        Claim(nothing_called_in_remat3, remat3=True),
        Claim(no_names_save_nothing),
        Claim(nothing_named, source=example("JXR202").fixed),
        Claim(
            at_once(TypeError, lambda m: m["run"](dots, W, X), "missing 1 required"),
            example="alias_of_the_policies",
        ),
        Claim(dots_named, source=example("JXR202", "alias_of_the_policies").fixed),
        Claim(
            lambda m: raises(TypeError, "not callable")(m["block"]), example="alias_of_one_policy"
        ),
        Claim(
            lambda m: gradient(m["block"]), source=example("JXR202", "alias_of_one_policy").fixed
        ),
        Claim(
            at_once(TypeError, lambda m: m["policy_for"]("dots"), "missing 1"),
            example="values_of_a_table",
        ),
        Claim(
            lambda m: m["policy_for"]("batch"), source=example("JXR202", "values_of_a_table").fixed
        ),
    ),
    "JXR213": (
        Claim(a_misspelt_name_recomputes_everything),
        Claim(a_misspelt_name_raises(AttributeError), source=example("JXR213").fixed),
        Claim(a_table_gives_none, example="get_of_a_table"),
        Claim(a_misspelt_name_raises(KeyError), source=example("JXR213", "get_of_a_table").fixed),
    ),
    "JXR214": (
        Claim(no_block_is_checkpointed, needs=("flax",)),
        Claim(dots_are_computed_once(("dots", "full")), example="one_case_of_match"),
        Claim(dots_are_computed_once((True, False)), example="opposite_tests"),
        Claim(dots_are_computed_once(("names", "full")), example="another_value_is_tested"),
    ),
    "JXR203": (
        Claim(tuple_matches_nothing),
        Claim(unpacked_matches, source=example("JXR203").fixed),
        Claim(at_once(TypeError, lambda m: m["kept"](), "unhashable"), example="list"),
        Claim(lambda m: m["kept"](), source=example("JXR203", "list").fixed),
        Claim(tuple_excepts_nothing, example="constant_tuple_in_a_decorator"),
        Claim(other_collections, example="tuple_call_and_frozenset"),
        Claim(generator_matches_nothing, example="generator"),
        Claim(letters_match_nothing, example="string_for_a_list"),
        Claim(name_in_list_matches, source=example("JXR203", "string_for_a_list").fixed),
        Claim(letters_match_nothing, example="constant_of_the_module"),
        Claim(
            goes_to_host, source=example("JXR203", "constant_of_the_module").fixed, since=(0, 7, 1)
        ),
        Claim(letter_matches),
    ),
    "JXR205": (
        Claim(everything_is_no_checkpoint),
        Claim(lambda m: gradient(m["run"]), source=example("JXR205").fixed),
        Claim(everything_by_decorator, example="decorator"),
        Claim(everything_by_decorator, source=example("JXR205", "decorator").fixed),
        Claim(everything_in_linen, example="linen_remat", needs=("flax",)),
        Claim(outer_saves_nothing, example="inner_policy_in_a_checkpoint"),
        Claim(outer_with_policy, example="inner_policy_in_a_checkpoint"),
        Claim(outer_names_win, example="names_of_inner_and_outer"),
        Claim(outer_nothing_wins, example="everything_inside_nothing"),
        Claim(outer_nothing_wins, source=example("JXR205", "everything_inside_nothing").fixed),
    ),
    "JXR207": (
        Claim(primitive_is_no_string),
        Claim(primitive_by_name, source=example("JXR207").fixed),
        Claim(wrong_signature, example="signature_without_arguments"),
        Claim(not_among_strings, example="compared_with_a_tuple"),
        Claim(among_names, source=example("JXR207", "compared_with_a_tuple").fixed),
        Claim(not_a_bool, example="returns_no_bool"),
        Claim(string_in_primitive, example="membership_in_a_list_and_a_string"),
        Claim(string_in_name, source=example("JXR207", "membership_in_a_list_and_a_string").fixed),
    ),
    "JXR208": (Claim(excepted_is_saved),),
}
