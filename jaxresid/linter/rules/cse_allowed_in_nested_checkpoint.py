from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import cse
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.uses import RemoteCheckpoint
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Related, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class CseAllowedInNestedCheckpoint(Rule):
    """`prevent_cse=False` on a checkpoint inside another checkpointed function.

    ## What it does
    Finds a literal `prevent_cse=False` whose function is called in a function or a module that is
    checkpointed itself, or called in one that is, in any files of the project, with no staged loop
    or branch in between.

    ## Why is this bad?
    The backward pass of the outer function recomputes its forward pass, inner functions included,
    and the inner ones recompute once more, in the same computation. Under `jax.jit` XLA merges the
    two, and the inner checkpoints might as well not be there. A loop around the outer one does not
    change that: it separates only the outer checkpoint from its forward pass. The newer
    implementation (`jax_remat3`) keeps the two apart.

    ## Use instead
    The default, `prevent_cse=True`, for the inner ones; False at most for the outer one.

    ## When is this fine?
    Where the inner function is the body of a loop inside the outer one: the rule is silent there.
    Where `jax_remat3` is on.

    ## Is the fix safe?
    No: it removes the argument, so that the compiled program recomputes, as was meant.
    """

    code = "JXR403"
    name = "cse-allowed-in-nested-checkpoint"
    severity = "warning"
    why = "XLA merges the inner recomputation with the outer one, as both are in one computation."
    help = "leave `prevent_cse` out for the inner checkpoint"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(x, ws):
                inner = jax.checkpoint(layer, prevent_cse=False)  # !
                for w in ws:
                    x = inner(w, x)
                return x, None


            def loss(ws, x):
                body = jax.checkpoint(pair, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws)[0])
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(x, ws):
                inner = jax.checkpoint(layer)
                for w in ws:
                    x = inner(w, x)
                return x, None


            def loss(ws, x):
                body = jax.checkpoint(pair, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws)[0])
            """,
        ),
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp
            from jax import remat


            @functools.partial(remat, prevent_cse=False)  # !
            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(ws, x):
                return layer(ws[1], layer(ws[0], x))


            @jax.checkpoint
            def stage(ws, x):
                return jnp.tanh(pair(ws, x))


            def loss(ws, x):
                return jnp.sum(stage(ws[1], stage(ws[0], x)))
            """,
            fixed="""
            import functools

            import jax
            import jax.numpy as jnp
            from jax import remat


            @remat
            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(ws, x):
                return layer(ws[1], layer(ws[0], x))


            @jax.checkpoint
            def stage(ws, x):
                return jnp.tanh(pair(ws, x))


            def loss(ws, x):
                return jnp.sum(stage(ws[1], stage(ws[0], x)))
            """,
        ),
        Example(
            """
            import flax.linen as nn


            class Block(nn.Module):
                cfg: dict

                def setup(self):
                    if self.cfg.remat:
                        self.mlp = nn.remat(nn.MLP, prevent_cse=False)(self.cfg)  # !
                    else:
                        self.mlp = nn.MLP(self.cfg)

                def __call__(self, x):
                    return x + self.mlp(x)


            class Net(nn.Module):
                cfg: dict

                @nn.compact
                def __call__(self, x):
                    block = Block
                    if self.cfg.remat:
                        block = nn.remat(Block)
                    for _ in range(4):
                        x = block(self.cfg)(x)
                    return x
            """,
            fixed="""
            import flax.linen as nn


            class Block(nn.Module):
                cfg: dict

                def setup(self):
                    if self.cfg.remat:
                        self.mlp = nn.remat(nn.MLP)(self.cfg)
                    else:
                        self.mlp = nn.MLP(self.cfg)

                def __call__(self, x):
                    return x + self.mlp(x)


            class Net(nn.Module):
                cfg: dict

                @nn.compact
                def __call__(self, x):
                    block = Block
                    if self.cfg.remat:
                        block = nn.remat(Block)
                    for _ in range(4):
                        x = block(self.cfg)(x)
                    return x
            """,
        ),
        Example(
            """
            import jax


            class Block:
                def __init__(self, remat):
                    self.remat = remat

                def mlp(self, w, x):
                    return jax.nn.gelu(jax.nn.gelu(x @ w) @ w)

                def _forward(self, w, x):
                    mlp = jax.checkpoint(self.mlp, prevent_cse=False)  # !
                    return x + mlp(w, x + mlp(w, x))

                def __call__(self, w, x):
                    if self.remat:
                        return jax.checkpoint(self._forward)(w, x)
                    return self._forward(w, x)
            """,
            fixed="""
            import jax


            class Block:
                def __init__(self, remat):
                    self.remat = remat

                def mlp(self, w, x):
                    return jax.nn.gelu(jax.nn.gelu(x @ w) @ w)

                def _forward(self, w, x):
                    mlp = jax.checkpoint(self.mlp)
                    return x + mlp(w, x + mlp(w, x))

                def __call__(self, w, x):
                    if self.remat:
                        return jax.checkpoint(self._forward)(w, x)
                    return self._forward(w, x)
            """,
        ),
        Example(
            """
            import flax.linen as nn


            class Mlp(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(8)(nn.gelu(nn.gelu(nn.Dense(32)(x))))


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x):
                    for _ in range(3):
                        x = x + nn.remat(Mlp, prevent_cse=False)()(x)  # !
                    return x
            """,
            fixed="""
            import flax.linen as nn


            class Mlp(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(8)(nn.gelu(nn.gelu(nn.Dense(32)(x))))


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x):
                    for _ in range(3):
                        x = x + nn.remat(Mlp)()(x)
                    return x
            """,
            files={
                "net.py": """
            import flax.linen as nn
            from module import Block


            class Net(nn.Module):
                remat: bool = True

                @nn.compact
                def __call__(self, x):
                    block = Block
                    if self.remat:
                        block = nn.remat(Block)
                    return block()(block()(x))
            """
            },
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(ws, x):
                inner = jax.checkpoint(layer, prevent_cse=False)  # !
                return inner(ws[1], inner(ws[0], x))
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(ws, x):
                inner = jax.checkpoint(layer)
                return inner(ws[1], inner(ws[0], x))
            """,
            files={
                "net.py": """
                import jax
                from module import pair


                @jax.checkpoint
                def stage(ws, x):
                    return pair(ws[2:], pair(ws[:2], x))


                def loss(ws, xs):
                    x, _ = jax.lax.scan(lambda x, _: (stage(ws, x), None), xs[0], xs)
                    return jax.checkpoint(lambda x: pair(ws, x))(x).sum()
                """,
                "run.py": """
                import jax
                from net import stage


                def rows(ws, xs):
                    return jax.lax.map(lambda x: stage(ws, x), xs)
                """,
            },
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(ws, x):
                inner = jax.checkpoint(layer, prevent_cse=False)  # !
                return inner(ws[1], inner(ws[0], x))
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(ws, x):
                inner = jax.checkpoint(layer)
                return inner(ws[1], inner(ws[0], x))
            """,
            files={
                "stages.py": """
                from module import pair


                def stage(ws, x):
                    return pair(ws[2:], pair(ws[:2], x))
                """,
                "net.py": """
                import jax
                from stages import stage


                def loss(ws, x):
                    for _ in range(4):
                        x = jax.checkpoint(stage)(ws, x)
                    return x.sum()
                """,
            },
        ),
        Example(
            """
            import flax.linen as nn


            class Block(nn.Module):
                cfg: dict

                def setup(self):
                    self.mlp = nn.remat(nn.MLP, prevent_cse=False)(self.cfg)  # !

                def __call__(self, x):
                    return x + self.mlp(x)
            """,
            fixed="""
            import flax.linen as nn


            class Block(nn.Module):
                cfg: dict

                def setup(self):
                    self.mlp = nn.remat(nn.MLP)(self.cfg)

                def __call__(self, x):
                    return x + self.mlp(x)
            """,
            files={
                "stages.py": """
                import flax.linen as nn
                from module import Block


                class Stage(nn.Module):
                    cfg: dict

                    def setup(self):
                        self.blocks = [Block(self.cfg) for _ in range(4)]

                    def __call__(self, x):
                        for block in self.blocks:
                            x = block(x)
                        return x
                """,
                "net.py": """
                import flax.linen as nn
                from stages import Stage


                class Net(nn.Module):
                    cfg: dict

                    @nn.compact
                    def __call__(self, x):
                        for _ in range(4):
                            x = nn.remat(Stage)(self.cfg)(x)
                        return x
                """,
            },
        ),
    )
    good = (
        Example(  # a loop of another module in between
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(ws, x):
                inner = jax.checkpoint(layer, prevent_cse=False)
                return inner(ws[1], inner(ws[0], x))
            """,
            files={
                "net.py": """
                import jax
                from module import pair


                @jax.checkpoint
                def stage(ws, x):
                    return jax.lax.scan(lambda x, ws: (pair(ws, x), None), x, ws)[0]
                """,
            },
        ),
        Example(  # outside the checkpoint of another module as well
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(ws, x):
                inner = jax.checkpoint(layer, prevent_cse=False)
                return inner(ws[1], inner(ws[0], x))
            """,
            files={
                "net.py": """
                import jax
                from module import pair


                @jax.checkpoint
                def stage(ws, x):
                    return pair(ws, x)


                def both(ws, x):
                    return jax.lax.map(lambda x: pair(ws, x), stage(ws, x))
                """,
            },
        ),
        Example(  # a third module calls its caller without a checkpoint
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(ws, x):
                inner = jax.checkpoint(layer, prevent_cse=False)
                return inner(ws[1], inner(ws[0], x))
            """,
            files={
                "stages.py": """
                from module import pair


                def stage(ws, x):
                    return pair(ws[2:], pair(ws[:2], x))
                """,
                "net.py": """
                import jax
                from stages import stage


                def loss(ws, x):
                    for _ in range(4):
                        x = jax.checkpoint(stage)(ws, x)
                    return x.sum()
                """,
                "other.py": """
                import jax
                from stages import stage


                def run(ws, xs):
                    return jax.lax.map(lambda x: stage(ws, x), xs)
                """,
            },
        ),
        Example(  # no checkpoint anywhere
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(ws, x):
                inner = jax.checkpoint(layer, prevent_cse=False)
                return inner(ws[1], inner(ws[0], x))
            """,
            files={
                "stages.py": """
                from module import pair


                def stage(ws, x):
                    return pair(ws[2:], pair(ws[:2], x))
                """,
            },
        ),
        Example(  # one of two ways leads to no checkpoint
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(ws, x):
                inner = jax.checkpoint(layer, prevent_cse=False)
                return inner(ws[1], inner(ws[0], x))
            """,
            files={
                "stages.py": """
                from module import pair


                def stage(ws, x):
                    return pair(ws[2:], pair(ws[:2], x))


                def rows(ws, xs):
                    return [stage(ws, x) for x in xs]
                """,
                "net.py": """
                import jax
                from stages import stage


                def loss(ws, x):
                    for _ in range(4):
                        x = jax.checkpoint(stage)(ws, x)
                    return x.sum()
                """,
            },
        ),
        Example(  # handed to what is not visible
            """
            import flax.linen as nn


            class Block(nn.Module):
                cfg: dict

                def setup(self):
                    self.mlp = nn.remat(nn.MLP, prevent_cse=False)(self.cfg)

                def __call__(self, x):
                    return x + self.mlp(x)
            """,
            files={
                "stages.py": """
                import flax.linen as nn
                from module import Block


                class Stage(nn.Module):
                    cfg: dict

                    def setup(self):
                        self.blocks = [Block(self.cfg) for _ in range(4)]

                    def __call__(self, x):
                        return self.run(self.blocks, self.blocks[0](x))
                """,
                "net.py": """
                import flax.linen as nn
                from stages import Stage


                class Net(nn.Module):
                    cfg: dict

                    @nn.compact
                    def __call__(self, x):
                        for _ in range(4):
                            x = nn.remat(Stage)(self.cfg)(x)
                        return x
                """,
            },
        ),
        Example(  # a scan in between
            """
            import flax.linen as nn


            class Block(nn.Module):
                cfg: dict

                def setup(self):
                    self.mlp = nn.remat(nn.MLP, prevent_cse=False)(self.cfg)

                def __call__(self, x):
                    return x + self.mlp(x)
            """,
            files={
                "stages.py": """
                import flax.linen as nn
                from module import Block


                class Stage(nn.Module):
                    cfg: dict

                    def setup(self):
                        self.blocks = [nn.scan(Block, length=4)(self.cfg)]

                    def __call__(self, x):
                        for block in self.blocks:
                            x = block(x)
                        return x
                """,
                "net.py": """
                import flax.linen as nn
                from stages import Stage


                class Net(nn.Module):
                    cfg: dict

                    @nn.compact
                    def __call__(self, x):
                        for _ in range(4):
                            x = nn.remat(Stage)(self.cfg)(x)
                        return x
                """,
            },
        ),
        Example(  # run where the instance is made
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def shift(w, x):
                by = jax.checkpoint(layer, prevent_cse=False)(w, x)
                return lambda x: x + by
            """,
            files={
                "net.py": """
                import jax
                from module import shift


                class Stage:
                    def __init__(self, w, x):
                        self.shift = shift(w, x)

                    @jax.checkpoint
                    def __call__(self, x):
                        return self.shift(x)


                def run(w, x):
                    return Stage(w, x)(x)
                """,
            },
        ),
        Example(  # whoever calls it in the other place
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(ws, x):
                inner = jax.checkpoint(layer, prevent_cse=False)
                return inner(ws[1], inner(ws[0], x))


            @jax.checkpoint
            def stage(ws, x):
                return pair(ws, x)


            def plain(ws, x):
                return pair(ws, x)
            """,
        ),
        Example(  # another module uses it without a checkpoint as well
            """
            import flax.linen as nn
            from parts import Mlp


            class Block(nn.Module):
                remat: bool = True

                @nn.compact
                def __call__(self, x):
                    return x + nn.remat(Mlp, prevent_cse=False)()(x)
            """,
            files={
                "net.py": """
            import flax.linen as nn
            from module import Block


            class Net(nn.Module):
                remat: bool = True

                @nn.compact
                def __call__(self, x):
                    return Block()(nn.remat(Block)()(x))
            """
            },
        ),
        Example(  # in a scan in another module, whose checkpoint is around it
            """
            import flax.linen as nn
            from parts import Mlp


            class Block(nn.Module):
                remat: bool = True

                @nn.compact
                def __call__(self, x):
                    return x + nn.remat(Mlp, prevent_cse=False)()(x)
            """,
            files={
                "net.py": """
            import flax.linen as nn
            from module import Block


            class Net(nn.Module):
                remat: bool = True

                @nn.compact
                def __call__(self, x):
                    return nn.remat(nn.scan(Block, length=4))()(x)
            """
            },
        ),
        Example(  # one flag or the other
            """
            import flax.linen as nn
            from parts import Mlp


            class Block(nn.Module):
                remat: bool = True

                @nn.compact
                def __call__(self, x):
                    mlp = nn.remat(Mlp, prevent_cse=False) if self.remat else Mlp
                    return x + mlp()(x)
            """,
            files={
                "net.py": """
            import flax.linen as nn
            from module import Block


            class Net(nn.Module):
                remat: bool = True

                @nn.compact
                def __call__(self, x):
                    return nn.remat(Block)()(x)
            """
            },
        ),
        Example(  # handed to what is not visible
            """
            import flax.linen as nn
            from parts import Mlp


            class Block(nn.Module):
                remat: bool = True

                @nn.compact
                def __call__(self, x):
                    return x + nn.remat(Mlp, prevent_cse=False)()(x)
            """,
            files={
                "net.py": """
            import flax.linen as nn
            from module import Block


            class Net(nn.Module):
                remat: bool = True

                @nn.compact
                def __call__(self, x):
                    return self.run(nn.remat(Block), Block)(x)
            """
            },
        ),
        Example(  # called without the checkpoint in any case
            """
            import jax


            class Block:
                def mlp(self, w, x):
                    return jax.nn.gelu(jax.nn.gelu(x @ w) @ w)

                def _forward(self, w, x):
                    return x + jax.checkpoint(self.mlp, prevent_cse=False)(w, x)

                def __call__(self, w, x):
                    x = self._forward(w, x)
                    if self.remat:
                        x = jax.checkpoint(self._forward)(w, x)
                    return x
            """
        ),
        Example(  # one flag or the other
            """
            import flax.linen as nn


            class Block(nn.Module):
                cfg: dict

                def setup(self):
                    if self.cfg.remat == "mlp":
                        self.mlp = nn.remat(nn.MLP, prevent_cse=False)(self.cfg)
                    else:
                        self.mlp = nn.MLP(self.cfg)

                def __call__(self, x):
                    return x + self.mlp(x)


            class Net(nn.Module):
                cfg: dict

                @nn.compact
                def __call__(self, x):
                    block = Block
                    if self.cfg.remat == "block":
                        block = nn.remat(Block)
                    for _ in range(4):
                        x = block(self.cfg)(x)
                    return x
            """
        ),
        Example(  # one of its users does not checkpoint it
            """
            import flax.linen as nn


            class Block(nn.Module):
                cfg: dict

                def setup(self):
                    self.mlp = nn.remat(nn.MLP, prevent_cse=False)(self.cfg)

                def __call__(self, x):
                    return x + self.mlp(x)


            class Net(nn.Module):
                cfg: dict

                @nn.compact
                def __call__(self, x):
                    return Block(self.cfg)(nn.remat(Block)(self.cfg)(x))
            """
        ),
        Example(  # the default inside, False outside
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def pair(x, ws):
                inner = jax.checkpoint(layer)
                for w in ws:
                    x = inner(w, x)
                return x, None


            def loss(ws, x):
                body = jax.checkpoint(pair, prevent_cse=False)
                return jnp.sum(jax.lax.scan(body, x, ws)[0])
            """
        ),
        Example(  # a loop in between
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            @jax.checkpoint
            def stage(ws, x):
                inner = jax.checkpoint(layer, prevent_cse=False)
                return jax.lax.scan(lambda x, w: (inner(w, x), None), x, ws)[0]
            """
        ),
        Example(  # the same
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            @jax.checkpoint
            def stage(ws, x):
                @jax.checkpoint
                def outer(x):
                    inner = jax.checkpoint(layer, prevent_cse=False)
                    return jax.lax.fori_loop(0, 4, lambda i, x: inner(ws[i], x), x)

                return outer(x)
            """
        ),
        Example(  # the outer one is optional
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def run(ws, x, twice):
                inner = jax.checkpoint(layer, prevent_cse=False)

                def stage(x, w):
                    return inner(w, x), None

                body = jax.checkpoint(stage) if twice else stage
                return jax.lax.scan(body, x, ws)
            """
        ),
        Example(  # also called outside the outer one, in a scan
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            inner = jax.checkpoint(layer, prevent_cse=False)


            @jax.checkpoint
            def stage(ws, x):
                return inner(ws[1], inner(ws[0], x))


            def run(ws, x):
                return jax.lax.scan(lambda x, w: (inner(w, x), None), stage(ws, x), ws)
            """
        ),
        Example(  # siblings
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                one = jax.checkpoint(layer, prevent_cse=False)
                two = jax.checkpoint(layer)
                return two(ws, one(ws, x))
            """
        ),
        Example(  # decided elsewhere
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def make(flag):
                @jax.checkpoint
                def stage(ws, x):
                    return jax.checkpoint(layer, prevent_cse=flag)(ws[0], x)

                return stage
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            value = cse.false_prevent_cse(facts, site)
            outer = cse.enclosing_checkpoint(facts, site) if value is not None else None
            if value is None or outer is None:
                continue
            note = "the outer checkpoint"
            if isinstance(outer, RemoteCheckpoint):
                related: tuple[Related, ...] = (Related(note, outer.path, outer.span),)
                where = f"what `{outer.callee}` wraps in {outer.path}"
            else:
                related = stages.related_place(facts, outer.node, note)
                where = stages.site_text(facts, outer)
            yield self.report(
                facts,
                site.node,
                f"{stages.site_text(facts, site)} with `prevent_cse=False` is inside {where}: "
                "under `jax.jit` its recomputation is merged with that of the outer one",
                fix=cse.without_prevent_cse(facts, site, value),
                related=related,
            )
