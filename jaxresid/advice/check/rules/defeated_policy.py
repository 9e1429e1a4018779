"""The rule `defeated-policy` (JXR840)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_STAGES = """
    import jax
    import jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name

    policy = jax.checkpoint_policies.{policy}


    def layer(x, w):
        up, down = w
        return x + jax.nn.gelu({hidden}) @ down


    def stage(weights, x):
        def body(x, w):
            return jax.checkpoint(layer, policy=policy)(x, w), None{mark}

        return jax.lax.scan(body, x, weights)[0]


    def loss(weights, x):
        return jnp.sum(jax.vmap(stage, in_axes=({axis}, 0))(weights, x) ** 2)


    def loss_inputs():
        up = jax.ShapeDtypeStruct(({stages}6, 256, 1024), jnp.float32)
        down = jax.ShapeDtypeStruct(({stages}6, 1024, 256), jnp.float32)
        return (up, down), jax.ShapeDtypeStruct((4, 2048, 256), jnp.float32)
"""
_NAMED = 'checkpoint_name(x @ up, "up")'
_NO_BATCH = "dots_with_no_batch_dims_saveable"


class DefeatedPolicy(TracedRule):
    """A vmap hides matmuls from a checkpoint policy, which would save them without it.

    ## What it does
    Finds checkpoints inside a `vmap` whose policy does not save matmuls with parameters, although
    it would save them as they are written: the vmap is over the parameters as well, as over the
    stages of a pipeline or the members of an ensemble, and gives each of these matmuls a batch
    dimension. The function is traced once more to see what the policy says of what is written.
    Then the policy is made to save them, the program is differentiated again, and the finding says
    what FLOPs, kept bytes and peak are. It is shown where at least 3 % of the FLOPs go. Silent for
    matmuls of two activations, such as attention scores, for a vmap inside the checkpoint, and for
    programs on a mesh. Where a policy saves nothing for this reason, it is reported here and not as
    `unmatched-policy`.

    ## Why is this bad?
    `dots_with_no_batch_dims_saveable` is to keep the matmuls with parameters, which cost the most
    to compute again. Inside such a vmap all of them have a batch dimension, so all are computed
    again, without a word from JAX. The peak is lower than it was meant to be, and the step slower.

    ## Use instead
    Name what is to be saved, `checkpoint_name(x @ w, "up")`, and use
    `save_only_these_names("up", ...)` or `save_and_offload_only_these_names`: a name is saved
    whatever a vmap adds. `dots_saveable` saves them too, and attention scores as well.

    ## When is this fine?
    Where the memory is needed more than the time. Then the checkpoint needs no policy.
    """

    bad = (
        Example(
            _STAGES.format(policy=_NO_BATCH, hidden="x @ up", axis="0", stages="4, ", mark="  # !"),
        ),
    )
    good = (
        Example(
            _STAGES.format(
                policy='save_only_these_names("up")', hidden=_NAMED, axis="0", stages="4, ", mark=""
            )
        ),
        # All examples of a batch have the same parameters, and the matmuls no batch dimension.
        Example(_STAGES.format(policy=_NO_BATCH, hidden="x @ up", axis="None", stages="", mark="")),
    )
