from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes.unwrapping import remove_checkpoint
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Related, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use

# A mapped checkpoint keeps and recomputes the whole batch at once, as an unmapped one does.
_TRANSPARENT = {"jit", "vmap", "partial", "class", "instance"}


class CheckpointedLoss(Rule):
    """The whole differentiated function is checkpointed, without a policy.

    ## What it does
    Finds a function that is checkpointed as a whole and then handed to `jax.grad`,
    `jax.value_and_grad`, `jax.vjp` or a library's form of them, in the same file or in another one
    of the project. What may come after it are sums, means and arithmetic with what the loss is
    given: `jnp.mean((model.apply(params, x) - y) ** 2)`.

    ## Why is this bad?
    The residuals shrink to the arguments, but the backward pass starts by recomputing all of them
    at once, so the peak is normally where it was. What changes is the time: under
    `jax.value_and_grad` the forward pass runs twice (a third more FLOPs on a plain network).

    ## Use instead
    Checkpoint the parts: each layer, or the body of the scan over layers. Or keep the outer
    checkpoint and give it a policy that saves what is expensive to recompute.

    ## When is this fine?
    With a policy. Inside a staged loop, a `lax.map` or another derivative, where the function is
    one of many; in a rule of `custom_vjp`. In a loop of gradients that is differentiated itself: the
    rule speaks in a loop only where an optimizer gets the gradient (`tx.update(grads, state)`). The compiler's scheduling can still move the peak by
    some 10 %, and on sharded models the barrier also keeps gathered weights from being shared
    between the passes: measure before you remove it there.

    ## Is the fix safe?
    No: values stay the same, memory and time may change.
    """

    code = "JXR101"
    name = "checkpointed-loss"
    severity = "warning"
    lenient_in_tests = True
    why = (
        "The backward pass begins by recomputing every residual at once, so the peak is where it "
        "was, and value_and_grad runs the forward pass twice."
    )
    help = "checkpoint the layers instead, or give it a policy"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def loss(w, x):
                for _ in range(3):
                    x = jnp.tanh(x @ w)
                return x.sum()


            def step(w, x):
                return jax.value_and_grad(jax.checkpoint(loss))(w, x)  # !
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def loss(w, x):
                for _ in range(3):
                    x = jnp.tanh(x @ w)
                return x.sum()


            def step(w, x):
                return jax.value_and_grad(loss)(w, x)
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            @jax.checkpoint  # !
            def loss(w, x):
                return jnp.tanh(x @ w).sum()


            gradient = jax.jit(jax.grad(loss))
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def loss(w, x):
                return jnp.tanh(x @ w).sum()


            gradient = jax.jit(jax.grad(loss))
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def make_loss(x):
                def loss(w):
                    return jnp.tanh(x @ w).sum()

                return jax.checkpoint(loss)  # !


            def step(w, x):
                return jax.value_and_grad(make_loss(x))(w)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def make_loss(x):
                def loss(w):
                    return jnp.tanh(x @ w).sum()

                return loss


            def step(w, x):
                return jax.value_and_grad(make_loss(x))(w)
            """,
        ),
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp


            @functools.partial(jax.remat, prevent_cse=True)  # !
            def loss(w, x):
                return jnp.tanh(x @ w).sum()


            gradient = jax.grad(jax.jit(loss))
            """,
            fixed="""
            import functools

            import jax
            import jax.numpy as jnp


            def loss(w, x):
                return jnp.tanh(x @ w).sum()


            gradient = jax.grad(jax.jit(loss))
            """,
        ),
        Example(
            """
            from jax import checkpoint as ckpt, value_and_grad
            import jax.numpy as jnp


            def forward(w, x):
                return jnp.tanh(x @ w).sum()


            def train(w, batch):
                def loss(w):
                    return ckpt(forward)(w, batch).mean()  # !

                return value_and_grad(loss)(w)
            """,
            fixed="""
            from jax import checkpoint as ckpt, value_and_grad
            import jax.numpy as jnp


            def forward(w, x):
                return jnp.tanh(x @ w).sum()


            def train(w, batch):
                def loss(w):
                    return forward(w, batch).mean()

                return value_and_grad(loss)(w)
            """,
        ),
        Example(
            """
            import equinox as eqx


            @eqx.filter_value_and_grad
            @eqx.filter_checkpoint  # !
            def loss(model, x):
                return model(x).sum()
            """,
            fixed="""
            import equinox as eqx


            @eqx.filter_value_and_grad
            def loss(model, x):
                return model(x).sum()
            """,
        ),
        Example(
            """
            import jax


            def one(w, x):
                return (jax.numpy.sin(w) * x).sum()


            def step(w, xs):
                def loss(w):
                    losses = jax.vmap(jax.checkpoint(one), (None, 0))(w, xs)  # !
                    return losses.mean()

                return jax.value_and_grad(loss)(w)
            """,
            fixed="""
            import jax


            def one(w, x):
                return (jax.numpy.sin(w) * x).sum()


            def step(w, xs):
                def loss(w):
                    losses = jax.vmap(one, (None, 0))(w, xs)
                    return losses.mean()

                return jax.value_and_grad(loss)(w)
            """,
        ),
        Example(
            """
            import jax


            @jax.checkpoint  # !
            def loss(w, x):
                return (w * x).sum()
            """,
            fixed="""
            import jax


            def loss(w, x):
                return (w * x).sum()
            """,
            files={
                "train.py": """
            import jax
            from module import loss


            def step(w, x):
                return jax.value_and_grad(loss)(w, x)
            """
            },
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def forward(w, x):
                return jnp.tanh(jnp.tanh(x @ w) @ w)


            def evaluate(w, batch):
                x = batch["x"]
                return jax.checkpoint(forward)(w, x).mean()  # !


            def loss(w, batch):
                return evaluate(w, batch)


            def step(w, batch):
                return jax.value_and_grad(loss)(w, batch)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def forward(w, x):
                return jnp.tanh(jnp.tanh(x @ w) @ w)


            def evaluate(w, batch):
                x = batch["x"]
                return forward(w, x).mean()


            def loss(w, batch):
                return evaluate(w, batch)


            def step(w, batch):
                return jax.value_and_grad(loss)(w, batch)
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            class Trainer:
                def energy(self, w, x):
                    return jnp.tanh(jnp.tanh(x @ w) @ w)

                def loss(self, w, x):
                    return jax.checkpoint(self.energy)(w, x).sum()  # !

                def step(self, w, x):
                    return jax.value_and_grad(self.loss)(w, x)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            class Trainer:
                def energy(self, w, x):
                    return jnp.tanh(jnp.tanh(x @ w) @ w)

                def loss(self, w, x):
                    return self.energy(w, x).sum()

                def step(self, w, x):
                    return jax.value_and_grad(self.loss)(w, x)
            """,
        ),
        Example(
            """
            import haiku as hk
            import jax


            def forward(x):
                return hk.nets.MLP([8, 8, 1])(x).mean()


            net = hk.without_apply_rng(hk.transform(hk.remat(forward)))  # !


            def loss(params, x):
                return net.apply(params, x)


            gradient = jax.jit(jax.value_and_grad(loss))
            """,
            fixed="""
            import haiku as hk
            import jax


            def forward(x):
                return hk.nets.MLP([8, 8, 1])(x).mean()


            net = hk.without_apply_rng(hk.transform(forward))


            def loss(params, x):
                return net.apply(params, x)


            gradient = jax.jit(jax.value_and_grad(loss))
            """,
        ),
        Example(
            """
            import flax.linen as nn
            import jax
            import jax.numpy as jnp


            class Net(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(8)(jnp.tanh(nn.Dense(8)(x)))


            model = nn.remat(Net)()  # !


            def loss(params, x, y):
                prediction = model.apply(params, x)
                return jnp.mean((prediction - y) ** 2)


            step = jax.value_and_grad(loss)
            """,
            fixed="""
            import flax.linen as nn
            import jax
            import jax.numpy as jnp


            class Net(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(8)(jnp.tanh(nn.Dense(8)(x)))


            model = Net()


            def loss(params, x, y):
                prediction = model.apply(params, x)
                return jnp.mean((prediction - y) ** 2)


            step = jax.value_and_grad(loss)
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def net(w, x):
                return jnp.tanh(jnp.tanh(x @ w) @ w)


            def step(w, x, batch):
                def loss(w):
                    return jnp.sum(0.5 * (batch["y"] - jax.checkpoint(net)(w, x)) ** 2)  # !

                return jax.value_and_grad(loss)(w)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def net(w, x):
                return jnp.tanh(jnp.tanh(x @ w) @ w)


            def step(w, x, batch):
                def loss(w):
                    return jnp.sum(0.5 * (batch["y"] - net(w, x)) ** 2)

                return jax.value_and_grad(loss)(w)
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp
            import optax

            tx = optax.adam(1e-3)


            def loss(w, x):
                for _ in range(3):
                    x = jnp.tanh(x @ w)
                return x.sum()


            def train(w, state, batches):
                def step(carry, batch):
                    w, state = carry
                    value, gradient = jax.value_and_grad(jax.checkpoint(loss))(w, batch)  # !
                    scaled = jax.tree.map(lambda g: g / 8, gradient)
                    updates, state = tx.update(scaled, state, w)
                    return (optax.apply_updates(w, updates), state), value

                return jax.lax.scan(step, (w, state), batches)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp
            import optax

            tx = optax.adam(1e-3)


            def loss(w, x):
                for _ in range(3):
                    x = jnp.tanh(x @ w)
                return x.sum()


            def train(w, state, batches):
                def step(carry, batch):
                    w, state = carry
                    value, gradient = jax.value_and_grad(loss)(w, batch)
                    scaled = jax.tree.map(lambda g: g / 8, gradient)
                    updates, state = tx.update(scaled, state, w)
                    return (optax.apply_updates(w, updates), state), value

                return jax.lax.scan(step, (w, state), batches)
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def loss(w, x):
                for _ in range(3):
                    x = jnp.tanh(x @ w)
                return x.sum()


            def gradient_of(w, batch):
                value, gradient = jax.value_and_grad(jax.checkpoint(loss))(w, batch)  # !
                return gradient, value


            def train(state, batches):
                def step(i, state):
                    gradient, value = gradient_of(state.params, batches[i])
                    return state.apply_gradients(grads=gradient)

                return jax.lax.fori_loop(0, 100, step, state)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def loss(w, x):
                for _ in range(3):
                    x = jnp.tanh(x @ w)
                return x.sum()


            def gradient_of(w, batch):
                value, gradient = jax.value_and_grad(loss)(w, batch)
                return gradient, value


            def train(state, batches):
                def step(i, state):
                    gradient, value = gradient_of(state.params, batches[i])
                    return state.apply_gradients(grads=gradient)

                return jax.lax.fori_loop(0, 100, step, state)
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def adam_step(params, moment, gradient):
                moment = 0.9 * moment + 0.1 * gradient
                return params - 1e-3 * moment, moment


            def train(params, batches, remat=False):
                def step(state, x):
                    def loss(w):
                        h = jnp.tanh(x @ w)
                        return jnp.mean(jnp.tanh(h @ w)), h

                    chosen = jax.checkpoint(loss) if remat else loss  # !
                    (value, h), gradient = jax.value_and_grad(chosen, has_aux=True)(state[0])
                    return adam_step(*state, gradient), value

                return jax.lax.scan(step, (params, jnp.zeros_like(params)), batches)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def adam_step(params, moment, gradient):
                moment = 0.9 * moment + 0.1 * gradient
                return params - 1e-3 * moment, moment


            def train(params, batches, remat=False):
                def step(state, x):
                    def loss(w):
                        h = jnp.tanh(x @ w)
                        return jnp.mean(jnp.tanh(h @ w)), h

                    chosen = loss
                    (value, h), gradient = jax.value_and_grad(chosen, has_aux=True)(state[0])
                    return adam_step(*state, gradient), value

                return jax.lax.scan(step, (params, jnp.zeros_like(params)), batches)
            """,
        ),
    )
    good = (
        Example(  # a loop that may be differentiated
            """
            import jax
            import jax.numpy as jnp


            def energy(x):
                return jnp.sum(jnp.tanh(x) ** 2)


            def relax(x):
                def step(x, _):
                    return x - 0.1 * jax.grad(jax.checkpoint(energy))(x), None

                return jax.lax.scan(step, x, length=100)[0]
            """
        ),
        Example(  # what is no optimizer
            """
            import jax
            import jax.numpy as jnp


            def energy(x):
                return jnp.sum(jnp.tanh(x) ** 2)


            def relax(x, log):
                def step(x, _):
                    value, force = jax.value_and_grad(jax.checkpoint(energy))(x)
                    log.update(value, 1)
                    log.update({"force": force})
                    return x - 0.1 * force, None

                return jax.lax.scan(step, x, length=100)[0]
            """
        ),
        Example(  # training that is differentiated
            """
            import jax
            import jax.numpy as jnp


            def loss(w, x):
                return jnp.sum(jnp.tanh(x @ w) ** 2)


            def meta_loss(rate, w, tx, state, batches):
                def step(carry, batch):
                    w, state = carry
                    gradient = jax.grad(jax.checkpoint(loss))(w, batch)
                    updates, state = tx.update(gradient, state)
                    return (w + rate * updates, state), None

                (w, _), _ = jax.lax.scan(step, (w, state), batches)
                return loss(w, batches[0])


            tune = jax.grad(meta_loss)
            """
        ),
        Example(  # one of two calls is no training
            """
            import jax
            import jax.numpy as jnp


            def energy(x):
                return jnp.sum(jnp.tanh(x) ** 2)


            def slope_of(x):
                return jax.grad(jax.checkpoint(energy))(x)


            def simulate(tx, x, state):
                def step(carry, _):
                    x, state = carry
                    updates, state = tx.update(slope_of(x), state)
                    return (x + updates, state), slope_of(x)

                return jax.lax.scan(step, (x, state), length=100)
            """
        ),
        Example(
            """
            import jax


            def forward(w, x):
                return jax.nn.gelu(x @ w)


            def evaluate(w, x):
                return jax.checkpoint(forward)(w, x).sum()


            def loss(w, x):
                h = jax.nn.gelu(x @ w)
                return evaluate(w, h)


            step = jax.value_and_grad(loss)
            """
        ),
        Example(  # the chain has another stage
            """
            import jax


            def forward(w, x):
                return jax.nn.gelu(x @ w)


            def evaluate(w, x):
                return jax.checkpoint(forward)(w, x)


            def loss(w, head, x):
                return head(w, evaluate(w, x)).sum()


            def step(w, head, x):
                return jax.value_and_grad(loss)(w, head, x)
            """
        ),
        Example(  # two calls in the chain
            """
            import jax


            def forward(w, x):
                return jax.nn.gelu(x @ w)


            def evaluate(w, x):
                return jax.checkpoint(forward)(w, x).sum()


            def loss(w, x, y):
                return evaluate(w, x) + evaluate(w, y)


            step = jax.value_and_grad(loss)
            """
        ),
        Example(
            """
            import jax


            def forward(w, x):
                return jax.nn.gelu(x @ w)


            def evaluate(w, x):
                return jax.checkpoint(forward)(w, x).sum()


            def loss(w, xs):
                return jax.lax.map(lambda x: evaluate(w, x), xs).sum()


            step = jax.value_and_grad(loss)
            """
        ),
        Example(
            """
            import jax


            def wrap(f):
                return jax.checkpoint(f)


            def step(loss, w):
                return jax.grad(wrap(loss))(w)
            """
        ),
        Example(
            """
            import jax


            def step(loss, w):
                cp = jax.checkpoint_policies
                return jax.grad(jax.checkpoint(loss, policy=cp.dots_saveable))(w)
            """
        ),
        Example(
            """
            import jax


            def step(loss, w, policy):
                return jax.grad(jax.checkpoint(loss, policy=policy))(w)
            """
        ),
        Example(
            """
            import jax


            def step(loss, w, **options):
                return jax.grad(jax.checkpoint(loss, **options))(w)
            """
        ),
        Example(
            """
            import jax


            def per_example(loss, w, xs):
                return jax.lax.map(lambda x: jax.grad(jax.checkpoint(loss))(w, x), xs)
            """
        ),
        Example(
            """
            import jax


            def forces(energy, pos):
                return -jax.grad(jax.checkpoint(energy))(pos)
            """
        ),
        Example(
            """
            import jax


            def matching(energy, params, pos, target):
                def loss(params):
                    f = jax.grad(jax.checkpoint(energy))(pos, params)
                    return ((f - target) ** 2).sum()

                return jax.grad(loss)(params)
            """
        ),
        Example(
            """
            import jax


            @jax.custom_vjp
            def f(x):
                return g(x)


            def g(x):
                return x * x


            def fwd(x):
                y, vjp = jax.vjp(jax.remat(g), x)
                return y, vjp


            def bwd(vjp, ct):
                return vjp(ct)


            f.defvjp(fwd, bwd)
            """
        ),
        Example(
            """
            import jax


            def start(loss, w):
                return jax.vjp(jax.checkpoint(loss), w)
            """
        ),
        Example(
            """
            import jax


            def layer(w, x):
                return jax.numpy.tanh(x @ w)


            def loss(ws, x):
                for w in ws:
                    x = jax.checkpoint(layer)(w, x)
                return x.sum()


            gradient = jax.grad(loss)
            """
        ),
        Example(
            """
            import jax


            @jax.checkpoint
            def block(w, x):
                return jax.numpy.sin(x @ w)


            def loss(w, x):
                return block(w, block(w, x)).sum()


            gradient = jax.grad(loss)
            piece = jax.grad(lambda w, x: block(w, x).sum())
            """
        ),
        Example(
            """
            def grad(f):
                return f


            def step(checkpoint, loss):
                return grad(checkpoint(loss))
            """
        ),
        Example(
            """
            import jax


            def tangent(loss, w, t):
                return jax.jvp(jax.checkpoint(loss, prevent_cse=True), w, t)
            """
        ),
        Example(  # a large product comes after
            """
            import jax
            import jax.numpy as jnp


            def net(w, x):
                return jnp.tanh(jnp.tanh(x @ w) @ w)


            def loss(w, x, head):
                return jnp.mean(jax.checkpoint(net)(w, x) @ head)


            step = jax.grad(loss)
            """
        ),
        Example(  # so does a softmax
            """
            import jax
            import jax.numpy as jnp


            def net(w, x):
                return jnp.tanh(jnp.tanh(x @ w) @ w)


            import optax


            def loss(w, x, labels):
                logits = jax.checkpoint(net)(w, x)
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


            step = jax.grad(loss)
            """
        ),
        Example(  # another network
            """
            import jax
            import jax.numpy as jnp


            def net(w, x):
                return jnp.tanh(jnp.tanh(x @ w) @ w)


            def loss(w, target, x):
                return jnp.mean((jax.checkpoint(net)(w, x) - net(target, x)) ** 2)


            step = jax.grad(loss)
            """
        ),
        Example(  # another part of the same one
            """
            import jax
            import jax.numpy as jnp


            def net(w, x):
                return jnp.tanh(jnp.tanh(x @ w) @ w)


            def loss(w, x):
                h = jnp.tanh(x @ w)
                return jnp.mean((jax.checkpoint(net)(w, x) - h) ** 2)


            step = jax.grad(loss)
            """
        ),
        Example(  # twice
            """
            import jax
            import jax.numpy as jnp


            def net(w, x):
                return jnp.tanh(jnp.tanh(x @ w) @ w)


            def loss(w, x, y):
                wrapped = jax.checkpoint(net)
                return jnp.mean((wrapped(w, x) - wrapped(w, y)) ** 2)


            step = jax.grad(loss)
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def net(w, x):
                return jnp.tanh(jnp.tanh(x @ w) @ w)


            def loss(w, x, y):
                policy = jax.checkpoint_policies.dots_saveable
                return jnp.mean((jax.checkpoint(net, policy=policy)(w, x) - y) ** 2)


            step = jax.grad(loss)
            """
        ),
        Example(  # under another derivative
            """
            import jax
            import jax.numpy as jnp


            def net(w, x):
                return jnp.tanh(jnp.tanh(x @ w) @ w)


            def loss(w, x, y):
                return jnp.mean((jax.checkpoint(net)(w, x) - y) ** 2)


            def adapted(w, x, y):
                return loss(w - jax.grad(loss)(w, x, y), x, y)


            step = jax.grad(adapted)
            """
        ),
        Example(  # one of many
            """
            import jax
            import jax.numpy as jnp


            def net(w, x):
                return jnp.tanh(jnp.tanh(x @ w) @ w)


            def loss(w, xs, y):
                def one(x):
                    return jnp.mean((jax.checkpoint(net)(w, x) - y) ** 2)

                return jnp.sum(jax.lax.map(one, xs))


            step = jax.grad(loss)
            """
        ),
        Example(  # rolled out
            """
            import flax.linen as nn
            import jax
            import jax.numpy as jnp


            class Net(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(8)(jnp.tanh(nn.Dense(8)(x)))


            model = nn.remat(Net)()


            def loss(params, x, y):
                def body(x, _):
                    return model.apply(params, x), None

                return jnp.mean((jax.lax.scan(body, x, length=4)[0] - y) ** 2)


            step = jax.value_and_grad(loss)
            """
        ),
        Example(  # a part of another module
            """
            import flax.linen as nn
            import jax
            import jax.numpy as jnp


            class Net(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(8)(jnp.tanh(nn.Dense(8)(x)))


            class Stack(nn.Module):
                @nn.compact
                def __call__(self, x):
                    block = nn.remat(Net)()
                    return x + block(x)


            model = Stack()


            def loss(params, x, y):
                return jnp.mean((model.apply(params, x) - y) ** 2)


            step = jax.value_and_grad(loss)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            if site.api.loop or not facts.policy(site).saves_nothing:
                continue
            loops = stages.whole_loops(facts, site)
            if loops and not any(
                stages.is_checkpointed(facts, b) is not False for one in loops for b in one.bodies
            ):
                continue  # checkpoint-around-loop has the better remedy
            evidence = _evidence(facts, site)
            if evidence is not None:
                by, related = evidence
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} wraps the whole function that `{by}` "
                    "differentiates: this normally saves no peak memory and recomputes the "
                    "forward pass",
                    fix=remove_checkpoint(facts, site),
                    related=related,
                )


def _evidence(facts: Facts, site: Site) -> tuple[str, tuple[Related, ...]] | None:
    """What differentiates the whole of a site: its name and where."""
    uses = facts.site_uses(site)
    found = stages.top_derivatives(facts, uses)
    if any("made" in u.through for u in uses) and facts.target(site) is None:
        return None  # a wrapper, which others may call for something else
    if found is None:
        return _inside(facts, uses)
    if found:
        by = stages.derivative_name(facts, found[0])
        return by, stages.related_place(facts, found[0].node, "differentiated here")
    remote = facts.remote_uses(site.definition) if site.definition is not None else ()
    if any(u.in_loop or u.in_reverse or u.kind in {"loop", "checkpoint", "rule"} for u in remote):
        return None
    for use in remote:
        if use.kind == "derivative" and not use.forward and "custom" not in use.through:
            return use.callee, (Related("differentiated here", use.path, use.span),)
    return None


def _inside(facts: Facts, uses: tuple[Use, ...]) -> tuple[str, tuple[Related, ...]] | None:
    """The same where a function does nothing but call the checkpointed one."""
    if len(uses) != 1 or uses[0].kind != "call" or not set(uses[0].through) <= _TRANSPARENT:
        return None
    call = uses[0].node
    function = facts.names.function(call)
    if (
        not isinstance(call, ast.Call)
        or function is None
        or not stages.is_whole(facts, function, call)
    ):
        return None
    found = stages.differentiating(facts, function, whole=True)
    if found is None:
        return None
    by = stages.derivative_name(facts, found)
    return by, stages.related_place(facts, found.node, "differentiated here")
