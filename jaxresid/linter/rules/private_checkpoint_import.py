from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import public_imports as moved
from jaxresid.linter.patterns import checkpoint_calls
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_PUBLIC = {
    "jax._src.ad_checkpoint.checkpoint": "jax.checkpoint",
    "jax._src.ad_checkpoint.checkpoint_wrapper": "jax.checkpoint",
    "jax._src.ad_checkpoint.remat": "jax.remat",
    "jax._src.ad_checkpoint.checkpoint_name": "jax.ad_checkpoint.checkpoint_name",
    "jax._src.ad_checkpoint.checkpoint_policies": "jax.checkpoint_policies",
    "jax._src.ad_checkpoint.print_saved_residuals": "jax.ad_checkpoint.print_saved_residuals",
    "jax._src.api.checkpoint": "jax.checkpoint",
    "jax._src.api.remat": "jax.remat",
    "jax._src.interpreters.partial_eval.Recompute": "jax.ad_checkpoint.Recompute",
    "jax._src.interpreters.partial_eval.Saveable": "jax.ad_checkpoint.Saveable",
    "jax._src.interpreters.partial_eval.Offloadable": "jax.ad_checkpoint.Offloadable",
}
_LAST_PARTS = frozenset(name.rpartition(".")[2] for name in _PUBLIC)


class PrivateCheckpointImport(Rule):
    """A public part of the checkpoint API is imported from jax's private modules.

    ## What it does
    Finds `jax._src.ad_checkpoint.checkpoint`, `checkpoint_name`, `checkpoint_policies` and the
    like, where the same thing has a public name.

    ## Why is this bad?
    `jax._src` may change in any release without notice.

    ## Use instead
    `jax.checkpoint`, `jax.remat`, `jax.checkpoint_policies`, `jax.ad_checkpoint.checkpoint_name`
    and `jax.ad_checkpoint.print_saved_residuals`.

    ## When is this fine?
    For what has no public name (`saved_residuals`, `remat_p`): that is not reported.

    ## Is the fix safe?
    Yes: the public name is the same object.
    """

    code = "JXR506"
    name = "private-checkpoint-import"
    severity = "warning"
    why = "Private modules of jax may change in any release without notice."
    help = "use the public name"
    fixes = "safe"
    bad = (
        Example(
            """
            from jax._src.ad_checkpoint import checkpoint_name  # !


            def name(x):
                return checkpoint_name(x, 'h')
            """,
            fixed="""
            from jax.ad_checkpoint import checkpoint_name


            def name(x):
                return checkpoint_name(x, 'h')
            """,
        ),
        Example(
            """
            from jax._src.ad_checkpoint import remat as ckpt, remat_p  # !


            def wrap(f):
                return ckpt(f), remat_p
            """,
            fixed="""
            from jax import remat as ckpt
            from jax._src.ad_checkpoint import remat_p


            def wrap(f):
                return ckpt(f), remat_p
            """,
        ),
        Example(
            """
            import jax
            from jax._src import ad_checkpoint


            def wrap(f):
                policy = ad_checkpoint.checkpoint_policies.dots_saveable  # !
                return jax.checkpoint(f, policy=policy)
            """,
            fixed="""
            import jax
            from jax._src import ad_checkpoint


            def wrap(f):
                policy = jax.checkpoint_policies.dots_saveable
                return jax.checkpoint(f, policy=policy)
            """,
        ),
        Example(
            """
            import jax._src.ad_checkpoint


            def wrap(f):
                return jax._src.ad_checkpoint.checkpoint(f)  # !
            """,
            fixed="""
            import jax._src.ad_checkpoint


            def wrap(f):
                return jax.checkpoint(f)
            """,
        ),
    )
    good = (
        Example("""
            from jax.ad_checkpoint import checkpoint_name, checkpoint_policies
            """),
        Example("""
            from jax._src.ad_checkpoint import saved_residuals, remat_p
            """),
        Example("""
            from jax._src import ad_checkpoint

            primitive = ad_checkpoint.remat_p
            """),
        Example(
            """
            from torch.utils.checkpoint import checkpoint


            def run(f, x):
                return checkpoint(f, x)
            """
        ),
        Example(
            """
            try:
                from jax.ad_checkpoint import checkpoint_name
            except ImportError:
                from jax._src.ad_checkpoint import checkpoint_name
            """
        ),
        Example("""
            from keras.src.backend.common.remat import remat
            """),
        Example("""
            import jax._src.ad_checkpoint

            name_p = jax._src.ad_checkpoint.name_p
            """),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        if facts.names.module.partition(".")[0] == "jax":
            return  # its own modules
        for node in facts.names.imports:
            if not isinstance(node, ast.ImportFrom) or node.level:
                continue
            for alias in node.names:
                public = _PUBLIC.get(f"{node.module}.{alias.name}")
                if public is not None and not checkpoint_calls.is_error_expected(facts, node):
                    fix = moved.import_from_public(facts, node, alias, public)
                    message = f"`{node.module}.{alias.name}` is private; `{public}` is the same"
                    yield self.report(facts, alias, message, fix=fix)
        for attribute in facts.names.attributes:
            if attribute.attr not in _LAST_PARTS:
                continue
            origins = facts.names.qualnames(attribute)
            public = _PUBLIC.get(origins[0]) if len(origins) == 1 else None
            if public is not None and not checkpoint_calls.is_error_expected(facts, attribute):
                fix = moved.read_from_public(facts, attribute, public)
                message = f"`{ast.unparse(attribute)}` is private; `{public}` is the same"
                yield self.report(facts, attribute, message, fix=fix)
