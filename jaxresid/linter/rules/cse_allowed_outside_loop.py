from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import conditions, cse
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.uses import PLAIN
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use


class CseAllowedOutsideLoop(Rule):
    """`prevent_cse=False` where no staged loop separates the forward from the backward pass.

    ## What it does
    Finds a literal `prevent_cse=False` whose function is called in a Python `for` loop, or in
    straight-line code that is visibly differentiated, with no `lax.scan` or other staged loop or
    branch on the way; also where a switch decides between a staged loop and such calls. And a
    `prevent_cse=scan_layers` that is the wrong way round.

    ## Why is this bad?
    Under `jax.jit` the compiler then sees the forward pass and its recomputation side by side, finds
    that they are the same, and merges them. The compiled program keeps what it would keep without
    the checkpoint: the same FLOPs and the same memory.

    ## Use instead
    The default, `prevent_cse=True`; or a `lax.scan` over the layers, where False is right.

    ## When is this fine?
    In the body of a staged loop that the rule does not see, such as a function that another project
    gives to `lax.scan`; and where nothing is ever jitted, where it makes no difference.

    ## Is the fix safe?
    No: it removes the argument, or sets it by the switch, so that the compiled program recomputes,
    as was meant.
    """

    code = "JXR401"
    name = "cse-allowed-outside-loop"
    severity = "warning"
    why = "Under `jax.jit` XLA merges the recomputation with the forward pass."
    help = "leave `prevent_cse` out, or run the layers with `jax.lax.scan`"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                for w in ws:
                    x = jax.checkpoint(layer, prevent_cse=False)(w, x)  # !
                return jnp.sum(x**2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                for w in ws:
                    x = jax.checkpoint(layer)(w, x)
                return jnp.sum(x**2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """,
        ),
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp


            @functools.partial(jax.checkpoint, prevent_cse=False)  # !
            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def trunk(ws, x):
                for w in ws:
                    x = layer(w, x)
                return x


            def loss(ws, x):
                return jnp.sum(trunk(ws, x) ** 2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """,
            fixed="""
            import functools

            import jax
            import jax.numpy as jnp


            @jax.checkpoint
            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def trunk(ws, x):
                for w in ws:
                    x = layer(w, x)
                return x


            def loss(ws, x):
                return jnp.sum(trunk(ws, x) ** 2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp
            from jax import remat as ckpt


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def step(ws, x):
                block = ckpt(  # !
                    layer,
                    policy=jax.checkpoint_policies.dots_saveable,
                    prevent_cse=False,  # the docs say so
                )

                def loss(ws):
                    h = block(ws[0], x)
                    h = jax.jit(block)(ws[1], h)
                    return jnp.sum(h**2)

                return jax.grad(loss)(ws)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp
            from jax import remat as ckpt


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def step(ws, x):
                block = ckpt(
                    layer,
                    policy=jax.checkpoint_policies.dots_saveable,  # the docs say so
                )

                def loss(ws):
                    h = block(ws[0], x)
                    h = jax.jit(block)(ws[1], h)
                    return jnp.sum(h**2)

                return jax.grad(loss)(ws)
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def trunk(ws, x):
                for w in ws:
                    x = jax.checkpoint(layer, prevent_cse=False)(w, x)  # !
                return x
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def trunk(ws, x):
                for w in ws:
                    x = jax.checkpoint(layer)(w, x)
                return x
            """,
        ),
        Example(
            """
            import flax.linen as nn


            class Trunk(nn.Module):
                cfg: dict
                block: type

                @nn.compact
                def __call__(self, x):
                    block = nn.remat(self.block, prevent_cse=False)  # !
                    if self.cfg.scan_layers:
                        layers = nn.scan(block, {"params": 0}, length=self.cfg.depth)
                        x, _ = layers(self.cfg)(x, None)
                    else:
                        for _ in range(self.cfg.depth):
                            x, _ = block(self.cfg)(x, None)
                    return x
            """,
            fixed="""
            import flax.linen as nn


            class Trunk(nn.Module):
                cfg: dict
                block: type

                @nn.compact
                def __call__(self, x):
                    block = nn.remat(self.block, prevent_cse=not self.cfg.scan_layers)
                    if self.cfg.scan_layers:
                        layers = nn.scan(block, {"params": 0}, length=self.cfg.depth)
                        x, _ = layers(self.cfg)(x, None)
                    else:
                        for _ in range(self.cfg.depth):
                            x, _ = block(self.cfg)(x, None)
                    return x
            """,
        ),
        Example(
            """
            import flax.linen as nn


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x, _):
                    return x + nn.Dense(8)(nn.gelu(nn.Dense(32)(x))), None


            class Net(nn.Module):
                scan: bool = True

                def setup(self):
                    block = nn.remat(Block, prevent_cse=False)  # !
                    if self.scan:
                        self.layers = nn.scan(
                            block, variable_axes={"params": 0}, split_rngs={"params": True}, length=4
                        )()
                    else:
                        self.blocks = [block() for _ in range(4)]

                def __call__(self, x):
                    if self.scan:
                        return self.layers(x, None)[0]
                    for block in self.blocks:
                        x, _ = block(x, None)
                    return x
            """,
            fixed="""
            import flax.linen as nn


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x, _):
                    return x + nn.Dense(8)(nn.gelu(nn.Dense(32)(x))), None


            class Net(nn.Module):
                scan: bool = True

                def setup(self):
                    block = nn.remat(Block, prevent_cse=not self.scan)
                    if self.scan:
                        self.layers = nn.scan(
                            block, variable_axes={"params": 0}, split_rngs={"params": True}, length=4
                        )()
                    else:
                        self.blocks = [block() for _ in range(4)]

                def __call__(self, x):
                    if self.scan:
                        return self.layers(x, None)[0]
                    for block in self.blocks:
                        x, _ = block(x, None)
                    return x
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def trunk(ws, x, mode="scan"):
                body = jax.checkpoint(layer, prevent_cse=False)  # !
                if mode == "scan":
                    x, _ = jax.lax.scan(body, x, ws)
                else:
                    for w in ws:
                        x, _ = body(x, w)
                return x
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def layer(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def trunk(ws, x, mode="scan"):
                body = jax.checkpoint(layer, prevent_cse=mode != "scan")
                if mode == "scan":
                    x, _ = jax.lax.scan(body, x, ws)
                else:
                    for w in ws:
                        x, _ = body(x, w)
                return x
            """,
        ),
        Example(
            """
            from functools import partial

            import jax
            import jax.numpy as jnp


            @partial(jax.checkpoint, prevent_cse=False)  # !
            def layer(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def trunk(ws, x, scan_layers=True):
                if scan_layers:
                    return jax.lax.scan(layer, x, ws)[0]
                for w in ws:
                    x, _ = layer(x, w)
                return x
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def trunk(ws, x, scan_layers=True):
                body = jax.checkpoint(layer, prevent_cse=scan_layers)  # !
                if not scan_layers:
                    for w in ws:
                        x, _ = body(x, w)
                    return x
                return jax.lax.scan(body, x, ws)[0]
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def layer(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def trunk(ws, x, scan_layers=True):
                body = jax.checkpoint(layer, prevent_cse=not scan_layers)
                if not scan_layers:
                    for w in ws:
                        x, _ = body(x, w)
                    return x
                return jax.lax.scan(body, x, ws)[0]
            """,
        ),
    )
    good = (
        Example(  # the default
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                for w in ws:
                    x = jax.checkpoint(layer)(w, x)
                return jnp.sum(x**2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """
        ),
        Example(  # a scan
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                block = jax.checkpoint(layer, prevent_cse=False)
                x, _ = jax.lax.scan(lambda x, w: (block(w, x), None), x, ws)
                return jnp.sum(x**2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """
        ),
        Example(  # scanned, but for the last piece
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                block = jax.checkpoint(layer, prevent_cse=False)
                x = jax.lax.fori_loop(0, 3, lambda i, x: block(ws[i], x), x)
                return jnp.sum(block(ws[3], x) ** 2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """
        ),
        Example(  # a Python loop inside the body of a scan
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def group(x, ws):
                for w in ws:
                    x = jax.checkpoint(layer, prevent_cse=False)(w, x)
                return x, None


            def loss(ws, x):
                x, _ = jax.lax.scan(group, x, ws)
                return jnp.sum(x**2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """
        ),
        Example(  # decided elsewhere
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x, scanned=False):
                for w in ws:
                    x = jax.checkpoint(layer, prevent_cse=not scanned)(w, x)
                return jnp.sum(x**2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """
        ),
        Example(  # hidden keywords
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x, **options):
                for w in ws:
                    x = jax.checkpoint(layer, **options)(w, x)
                return jnp.sum(x**2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """
        ),
        Example(  # nobody here differentiates it, nor loops over layers: its callers may scan
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def block(w, x):
                return jax.checkpoint(layer, prevent_cse=False)(w, x)
            """
        ),
        Example(  # a branch
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                block = jax.checkpoint(layer, prevent_cse=False)
                x = jax.lax.cond(x[0, 0] > 0, lambda x: block(ws[0], x), lambda x: x, x)
                return jnp.sum(x**2)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """
        ),
        Example(  # another module scans it
            """
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def group(x, ws):
                for w in ws:
                    x = jax.checkpoint(layer, prevent_cse=False)(w, x)
                return x, None


            def loss(ws, x):
                return jnp.sum(group(x, ws)[0])


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """,
            files={
                "model.py": """
            import jax
            from module import group


            def run(x, ws):
                return jax.lax.scan(group, x, ws)
            """
            },
        ),
        Example(  # handed to a helper that is not visible
            """
            import jax
            import jax.numpy as jnp
            from elsewhere import repeat


            def layer(w, x):
                return jnp.sin(jnp.tanh(x @ w) @ w)


            def loss(ws, x):
                block = jax.checkpoint(layer, prevent_cse=False)
                return jnp.sum(repeat(block)(ws, block(ws[0], x)))


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """
        ),
        Example(  # linen sets it
            """
            import flax.linen as nn


            class Model(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.remat_scan(nn.Dense, lengths=(2, 2))(8)(x)
            """
        ),
        Example(  # another library's
            """
            from torch.utils.checkpoint import checkpoint
            import jax


            def loss(layer, w, x):
                return checkpoint(layer, prevent_cse=False)(w, x)


            def step(ws, x):
                return jax.value_and_grad(loss)(ws, x)
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def trunk(ws, x, scan_layers=True):
                body = jax.checkpoint(layer, prevent_cse=not scan_layers)
                if scan_layers:
                    return jax.lax.scan(body, x, ws)[0]
                for w in ws:
                    x, _ = body(x, w)
                return x
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def layer(x, w):
                return jnp.sin(jnp.tanh(x @ w) @ w), None


            def trunk(ws, x, cfg, careful):
                body = jax.checkpoint(layer, prevent_cse=careful)
                if cfg.scan_layers:
                    return jax.lax.scan(body, x, ws)[0]
                for w in ws:
                    x, _ = body(x, w)
                return x
            """,
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            value = site.keyword("prevent_cse")
            if value is None or site.api.loop:
                continue
            if cse.false_prevent_cse(facts, site) is None:
                found = self._turned_round(facts, site, value)
            else:
                found = self._everywhere(facts, site, value) or self._chosen(facts, site, value)
            if found is not None:
                yield found

    def _everywhere(self, facts: Facts, site: Site, value: ast.expr) -> Violation | None:
        call = _unprotected(facts, site)
        if call is None:
            return None
        return self.report(
            facts,
            site.node,
            f"{stages.site_text(facts, site)} with `prevent_cse=False` is called outside a "
            "staged loop: under `jax.jit` the recomputation is merged away",
            fix=cse.without_prevent_cse(facts, site, value),
            related=stages.related_place(facts, call.node, "called here"),
        )

    def _chosen(self, facts: Facts, site: Site, value: ast.expr) -> Violation | None:
        choice = cse.only_if(facts, site)
        if choice is None or not _runs_backward(facts, choice.call):
            return None
        flag, holds = conditions.text(facts, choice.condition), choice.condition.holds
        wanted = conditions.negated(facts, choice.condition)
        message = (
            f"{stages.site_text(facts, site)} with `prevent_cse=False` is called outside a staged "
            f"loop where `{flag}` is {not holds}: under `jax.jit` the recomputation is merged away"
        )
        related = stages.related_place(facts, choice.call.node, "called here")
        if not choice.is_known:
            help = f"make the checkpoint where `{flag}` is known, with `prevent_cse={wanted}`"
            return self.report(facts, site.node, message, help=help, related=related)
        return self.report(
            facts,
            site.node,
            f"{message}, give `prevent_cse={wanted}`",
            fix=_set(facts, value, wanted),
            related=related,
        )

    def _turned_round(self, facts: Facts, site: Site, value: ast.expr) -> Violation | None:
        """Report `prevent_cse=scan` where `not scan` is right."""
        choice = cse.only_if(facts, site)
        if choice is None or not choice.is_known or not _runs_backward(facts, choice.call):
            return None
        given, asked = conditions.plain(value, True), choice.condition
        if given.holds != asked.holds or ast.dump(given.test) != ast.dump(asked.test):
            return None
        wanted = conditions.negated(facts, asked)
        return self.report(
            facts,
            site.node,
            f"{stages.site_text(facts, site)} has the barriers of "
            f"`prevent_cse={ast.unparse(value)}` in the staged loop, and none where it is called "
            f"outside one: give `prevent_cse={wanted}`",
            fix=_set(facts, value, wanted),
            related=stages.related_place(facts, choice.call.node, "called outside a loop here"),
        )


def _set(facts: Facts, value: ast.expr, wanted: str) -> Fix:
    edit = edits.replace(facts.source, value, wanted)
    return Fix(f"Set `prevent_cse={wanted}`", (edit,), "unsafe")


def _unprotected(facts: Facts, site: Site) -> Use | None:
    """A call of a site's function in differentiated code, or in a Python loop over layers, where no
    use of it is, or may be, in a staged loop or branch.
    """
    found = None
    for use in facts.site_uses(site):
        if use.kind != "call" or not PLAIN.issuperset(use.through):
            return None
        context = facts.context(use.node)
        if context.loop or context.branch or context.rule or context.unknown:
            return None
        if context.checkpoint:
            return None  # cse-allowed-in-nested-checkpoint
        if context.reverse or context.python_loop:
            found = found or use
    return found


def _runs_backward(facts: Facts, use: Use) -> bool:
    """Whether a call is in differentiated code, or in a Python loop, and in no staged loop."""
    context = facts.context(use.node)
    if context.loop or context.branch or context.rule or context.unknown or context.checkpoint:
        return False
    return context.reverse or context.python_loop
