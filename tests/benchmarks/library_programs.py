"""Losses and training steps around released libraries, that findings are judged by.

They were written before anything was said of them, and not chosen by what is said. A program
returns a function and its abstract arguments. `LOSSES` are differentiated by their first argument;
`STEPS` are whole training steps.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
LOSSES, STEPS = [], []


def loss(program):
    LOSSES.append(program)
    return program


def step(program):
    STEPS.append(program)
    return program


def array(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


def ids(*shape):
    return array(*shape, dtype=I32)


def key():
    return jax.eval_shape(lambda: jax.random.key(0))


def next_tokens(logits, tokens):
    """Return the mean cross entropy of each next token."""
    import optax

    each = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
    return each.mean()


def classes(logits, labels):
    import optax

    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def trained(of_params, optimizer, params, *batch, **jitted):
    """Return a jitted step of an optax optimizer on `of_params(params, *batch)`."""
    import optax

    @functools.partial(jax.jit, **jitted)
    def step(params, state, *batch):
        value, gradients = jax.value_and_grad(of_params)(params, *batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, jax.eval_shape(optimizer.init, params), *batch)


# -- flax.linen -----------------------------------------------------------------------------------


def _linen_lm(width, heads, layers, vocabulary, dtype, remat=False, scan=False, dropout=0.0):
    from flax import linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, mask):
            y = nn.LayerNorm(dtype=dtype)(x)
            attention = nn.MultiHeadDotProductAttention(
                heads, dtype=dtype, dropout_rate=dropout, deterministic=not dropout
            )
            x = x + attention(y, y, mask=mask)
            y = nn.gelu(nn.Dense(4 * width, dtype=dtype)(nn.LayerNorm(dtype=dtype)(x)))
            y = nn.Dense(width, dtype=dtype)(y)
            return x + nn.Dropout(dropout, deterministic=not dropout)(y), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            mask = nn.make_causal_mask(tokens)
            embed = nn.Embed(vocabulary, width, dtype=dtype)
            x = embed(tokens)
            x = x + nn.Embed(tokens.shape[1], width, dtype=dtype)(jnp.arange(tokens.shape[1]))
            block = nn.remat(Block, prevent_cse=not scan) if remat else Block
            if scan:
                stack = nn.scan(
                    block,
                    variable_axes={"params": 0},
                    split_rngs={"params": True, "dropout": True},
                    in_axes=nn.broadcast,
                    length=layers,
                )
                x, _ = stack()(x, mask)
            else:
                for _ in range(layers):
                    x, _ = block()(x, mask)
            return embed.attend(nn.LayerNorm(dtype=dtype)(x))

    return Model()


@step
def linen_lm_adamw():
    import optax

    model, tokens = _linen_lm(768, 12, 6, 32000, F32), ids(8, 512)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    of_params = lambda p, t: next_tokens(model.apply(p, t), t)
    return trained(of_params, optax.adamw(1e-4), params, tokens)


@step
def linen_lm_scanned_remat():
    import optax

    model = _linen_lm(1024, 16, 8, 32000, BF16, remat=True, scan=True)
    tokens = ids(8, 1024)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    of_params = lambda p, t: next_tokens(model.apply(p, t).astype(F32), t)
    return trained(of_params, optax.adamw(1e-4), params, tokens, donate_argnums=(0, 1))


@loss
def linen_lm_scanned_dropout():
    model = _linen_lm(512, 8, 6, 8192, BF16, scan=True, dropout=0.1)
    tokens = ids(8, 1024)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = jax.eval_shape(model.init, keys, tokens)
    run = lambda p, t, k: next_tokens(model.apply(p, t, rngs={"dropout": k}), t)
    return run, (params, tokens, key())


@step
def linen_lstm_train_state():
    import optax
    from flax import linen as nn
    from flax.training.train_state import TrainState

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.RNN(nn.OptimizedLSTMCell(1024))(x)
            x = nn.RNN(nn.OptimizedLSTMCell(1024))(x)
            return nn.Dense(1)(x)[..., 0]

    model, x = Model(), array(128, 256, 64)
    params = jax.eval_shape(model.init, jax.random.key(0), x)

    @jax.jit
    def step(state, x, y):
        def of_params(params):
            return optax.l2_loss(state.apply_fn(params, x), y).mean()

        value, gradients = jax.value_and_grad(of_params)(state.params)
        return state.apply_gradients(grads=gradients), value

    make = functools.partial(TrainState.create, apply_fn=model.apply, tx=optax.adam(1e-3))
    return step, (jax.eval_shape(lambda p: make(params=p), params), x, array(128, 256))


@loss
def linen_gru_lm():
    from flax import linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(20000, 512)(tokens)
            x = nn.RNN(nn.GRUCell(512))(x)
            return nn.Dense(20000)(x)

    model, tokens = Model(), ids(64, 128)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    return lambda p, t: next_tokens(model.apply(p, t), t), (params, tokens)


@loss
def linen_bidirectional_tagger():
    from flax import linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(10000, 256)(tokens)
            cells = [nn.RNN(nn.LSTMCell(512)) for _ in range(2)]
            return nn.Dense(32)(nn.Bidirectional(*cells)(x))

    model, tokens = Model(), ids(128, 256)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    return lambda p, t, y: classes(model.apply(p, t), y), (params, tokens, ids(128, 256))


@step
def linen_resnet_sgd():
    import optax
    from flax import linen as nn

    class Block(nn.Module):
        features: int
        stride: int

        @nn.compact
        def __call__(self, x):
            norm = functools.partial(nn.BatchNorm, use_running_average=False, dtype=BF16)
            conv = functools.partial(nn.Conv, use_bias=False, dtype=BF16)
            strides = (self.stride, self.stride)
            y = nn.relu(norm()(conv(self.features, (1, 1))(x)))
            y = nn.relu(norm()(conv(self.features, (3, 3), strides)(y)))
            y = norm(scale_init=nn.initializers.zeros_init())(conv(4 * self.features, (1, 1))(y))
            if x.shape != y.shape:
                x = norm()(conv(4 * self.features, (1, 1), strides)(x))
            return nn.relu(x + y)

    class ResNet(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(64, (7, 7), (2, 2), use_bias=False, dtype=BF16)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False, dtype=BF16)(x))
            x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
            for stage, blocks in enumerate((2, 2, 2, 2)):
                for i in range(blocks):
                    x = Block(64 * 2**stage, 2 if stage and not i else 1)(x)
            return nn.Dense(1000, dtype=BF16)(jnp.mean(x, axis=(1, 2))).astype(F32)

    model, x = ResNet(), array(64, 224, 224, 3)
    variables = jax.eval_shape(model.init, jax.random.key(0), x)
    optimizer = optax.sgd(0.1, momentum=0.9, nesterov=True)

    @jax.jit
    def step(params, stats, state, x, y):
        def of_params(params):
            given = {"params": params, "batch_stats": stats}
            logits, new = model.apply(given, x, mutable=["batch_stats"])
            return classes(logits, y), new["batch_stats"]

        (value, new), gradients = jax.value_and_grad(of_params, has_aux=True)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), new, state, value

    params, stats = variables["params"], variables["batch_stats"]
    return step, (params, stats, jax.eval_shape(optimizer.init, params), x, ids(64))


@loss
def linen_vit():
    from flax import linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(384, (16, 16), (16, 16))(x).reshape(x.shape[0], -1, 384)
            x = x + self.param("places", nn.initializers.normal(0.02), (1, x.shape[1], 384))
            for _ in range(6):
                x = x + nn.SelfAttention(6)(nn.LayerNorm()(x))
                x = x + nn.Dense(384)(nn.gelu(nn.Dense(1536)(nn.LayerNorm()(x))))
            return nn.Dense(1000)(nn.LayerNorm()(x).mean(1))

    model, x = Model(), array(64, 224, 224, 3)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    return lambda p, x, y: classes(model.apply(p, x), y), (params, x, ids(64))


@step
def linen_vae():
    """The model of flax's example, with more pixels."""
    import optax
    from flax import linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, key):
            h = nn.relu(nn.Dense(2048)(x))
            mean, logvar = nn.Dense(64)(h), nn.Dense(64)(h)
            z = mean + jnp.exp(0.5 * logvar) * jax.random.normal(key, logvar.shape)
            return nn.Dense(x.shape[-1])(nn.relu(nn.Dense(2048)(z))), mean, logvar

    model, x = Model(), array(8192, 4096)
    params = jax.eval_shape(model.init, jax.random.key(0), x, jax.random.key(0))

    def of_params(params, x, key):
        logits, mean, logvar = model.apply(params, x, key)
        bce = optax.sigmoid_binary_cross_entropy(logits, x).sum(-1)
        kl = -0.5 * jnp.sum(1 + logvar - mean**2 - jnp.exp(logvar), -1)
        return (bce + kl).mean()

    return trained(of_params, optax.adam(1e-3), params, x, key())


@loss
def linen_conv_lstm():
    from flax import linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.RNN(nn.ConvLSTMCell(64, (3, 3)))(x)
            return nn.Conv(1, (1, 1))(x)

    model, x = Model(), array(16, 16, 64, 64, 1)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    return lambda p, x: jnp.mean((model.apply(p, x)[:, :-1] - x[:, 1:]) ** 2), (params, x)


@loss
def linen_cross_attention_seq2seq():
    from flax import linen as nn

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, memory, mask):
            x = x + nn.SelfAttention(8)(nn.LayerNorm()(x), mask=mask)
            if memory is not None:
                x = x + nn.MultiHeadDotProductAttention(8)(nn.LayerNorm()(x), memory)
            return x + nn.Dense(512)(nn.relu(nn.Dense(2048)(nn.LayerNorm()(x))))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, source, target):
            embed = nn.Embed(16000, 512)
            memory, x = embed(source), embed(target)
            for _ in range(3):
                memory = Layer()(memory, None, None)
            for _ in range(3):
                x = Layer()(x, memory, nn.make_causal_mask(target))
            return nn.Dense(16000)(x)

    model, tokens = Model(), ids(32, 256)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)
    return lambda p, s, t: next_tokens(model.apply(p, s, t), t), (params, tokens, tokens)


# -- flax.nnx -------------------------------------------------------------------------------------


@step
def nnx_transformer_optimizer():
    import optax
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.norms = nnx.List([nnx.LayerNorm(768, rngs=rngs) for _ in range(2)])
            self.attention = nnx.MultiHeadAttention(12, 768, decode=False, rngs=rngs)
            self.up = nnx.Linear(768, 3072, rngs=rngs)
            self.down = nnx.Linear(3072, 768, rngs=rngs)

        def __call__(self, x, mask):
            x = x + self.attention(self.norms[0](x), mask=mask)
            return x + self.down(nnx.gelu(self.up(self.norms[1](x))))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(16000, 768, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(4)])
            self.head = nnx.Linear(768, 16000, rngs=rngs)

        def __call__(self, tokens):
            x, mask = self.embed(tokens), nnx.make_causal_mask(tokens)
            for block in self.blocks:
                x = block(x, mask)
            return self.head(x)

    def made():
        model = Model(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    model, optimizer = nnx.eval_shape(made)

    @nnx.jit
    def step(model, optimizer, tokens):
        of_model = lambda model: next_tokens(model(tokens), tokens)
        value, gradients = nnx.value_and_grad(of_model)(model)
        optimizer.update(model, gradients)
        return value

    return step, (model, optimizer, ids(8, 512))


@loss
def nnx_mlp_dropout():
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            sizes = (1024, 4096, 4096, 4096, 10)
            self.layers = nnx.List(
                [nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(sizes)]
            )
            self.dropout = nnx.Dropout(0.2)

        def __call__(self, x, rngs):
            for layer in self.layers[:-1]:
                x = self.dropout(nnx.relu(layer(x)), rngs=rngs)
            return self.layers[-1](x)

    graph, params = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))

    def run(params, x, y, key):
        return classes(nnx.merge(graph, params)(x, nnx.Rngs(key)), y)

    return run, (params, array(16384, 1024), ids(16384), key())


@loss
def nnx_lstm():
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.rnn = nnx.RNN(nnx.LSTMCell(128, 768, rngs=rngs))
            self.head = nnx.Linear(768, 128, rngs=rngs)

        def __call__(self, x):
            return self.head(self.rnn(x))

    graph, params = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))
    run = lambda p, x: jnp.mean((nnx.merge(graph, p)(x)[:, :-1] - x[:, 1:]) ** 2)
    return run, (params, array(128, 200, 128))


# -- equinox --------------------------------------------------------------------------------------


@step
def equinox_mlp_adam():
    import equinox as eqx
    import optax

    optimizer = optax.adam(1e-3)
    model = eqx.filter_eval_shape(
        lambda: eqx.nn.MLP(512, 512, 2048, 6, activation=jax.nn.silu, key=jax.random.key(0))
    )
    state = eqx.filter_eval_shape(lambda m: optimizer.init(eqx.filter(m, eqx.is_array)), model)

    @eqx.filter_jit
    def step(model, state, x, y):
        def of_model(model):
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        value, gradients = eqx.filter_value_and_grad(of_model)(model)
        updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), state, value

    return step, (model, state, array(32768, 512), array(32768, 512))


@loss
def equinox_bert():
    import equinox as eqx

    class Block(eqx.Module):
        attention: eqx.nn.MultiheadAttention
        mlp: eqx.nn.MLP
        norms: list

        def __init__(self, key):
            a, b = jax.random.split(key)
            self.attention = eqx.nn.MultiheadAttention(8, 512, key=a)
            self.mlp = eqx.nn.MLP(512, 512, 2048, 1, activation=jax.nn.gelu, key=b)
            self.norms = [eqx.nn.LayerNorm(512), eqx.nn.LayerNorm(512)]

        def __call__(self, x):
            x = jax.vmap(self.norms[0])(x + self.attention(x, x, x))
            return jax.vmap(self.norms[1])(x + jax.vmap(self.mlp)(x))

    class Model(eqx.Module):
        embed: eqx.nn.Embedding
        blocks: list
        head: eqx.nn.Linear

        def __init__(self, key):
            a, b, *keys = jax.random.split(key, 6)
            self.embed = eqx.nn.Embedding(8000, 512, key=a)
            self.blocks = [Block(k) for k in keys]
            self.head = eqx.nn.Linear(512, 8000, key=b)

        def __call__(self, tokens):
            x = jax.vmap(self.embed)(tokens)
            for block in self.blocks:
                x = block(x)
            return jax.vmap(self.head)(x)

    model = eqx.filter_eval_shape(lambda: Model(jax.random.key(0)))
    arrays, static = eqx.partition(model, lambda leaf: hasattr(leaf, "dtype"))

    def run(arrays, tokens, labels):
        return classes(jax.vmap(eqx.combine(arrays, static))(tokens), labels)

    return run, (arrays, ids(16, 512), ids(16, 512))


@loss
def equinox_gru():
    import equinox as eqx

    cell = eqx.filter_eval_shape(lambda: eqx.nn.GRUCell(64, 768, key=jax.random.key(0)))
    arrays, static = eqx.partition(cell, lambda leaf: hasattr(leaf, "dtype"))

    def run(arrays, x):
        cell = eqx.combine(arrays, static)

        def one(x):
            made = jax.lax.scan(lambda h, x: ((h := cell(x, h)), h), jnp.zeros(768), x)[1]
            return jnp.mean(made[-1] ** 2)

        return jnp.mean(jax.vmap(one)(x))

    return run, (arrays, array(128, 256, 64))


@loss
def equinox_unet_convs():
    import equinox as eqx

    def made():
        keys = jax.random.split(jax.random.key(0), 8)
        sizes = (3, 64, 64, 128, 128, 64, 64, 3)
        return [
            eqx.nn.Conv2d(a, b, 3, padding=1, key=k)
            for a, b, k in zip(sizes[:-1], sizes[1:], keys[:7], strict=True)
        ]

    arrays, static = eqx.partition(eqx.filter_eval_shape(made), lambda x: hasattr(x, "dtype"))

    def run(arrays, x, noise):
        convs = eqx.combine(arrays, static)

        def one(x):
            for conv in convs[:-1]:
                x = jax.nn.silu(conv(x))
            return convs[-1](x)

        return jnp.mean((jax.vmap(one)(x + noise) - noise) ** 2)

    return run, (arrays, array(32, 3, 128, 128), array(32, 3, 128, 128))


# -- haiku ----------------------------------------------------------------------------------------


@step
def haiku_transformer():
    """The model of haiku's example, with its initialisers and dropout."""
    import haiku as hk
    import optax

    def forward(tokens):
        x = hk.Embed(16000, 512)(tokens)
        mask = jnp.tril(jnp.ones((1, 1, tokens.shape[1], tokens.shape[1])))
        init = hk.initializers.VarianceScaling(0.3)
        norm = lambda x: hk.LayerNorm(-1, True, True)(x)  # noqa: PLW0108 - each has its own
        for _ in range(4):
            y = hk.MultiHeadAttention(8, 64, w_init=init, model_size=512)(
                norm(x), norm(x), norm(x), mask=mask
            )
            x = x + hk.dropout(hk.next_rng_key(), 0.1, y)
            y = hk.Sequential([hk.Linear(2048), jax.nn.gelu, hk.Linear(512)])(norm(x))
            x = x + hk.dropout(hk.next_rng_key(), 0.1, y)
        return hk.Linear(16000)(norm(x))

    model, tokens = hk.transform(forward), ids(8, 512)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    of_params = lambda p, t, k: next_tokens(model.apply(p, k, t), t)
    return trained(of_params, optimizer, params, tokens, key())


@step
def haiku_resnet18():
    import haiku as hk
    import optax

    model = hk.transform_with_state(lambda x: hk.nets.ResNet18(1000)(x, is_training=True))
    x = array(64, 128, 128, 3)
    params, stats = jax.eval_shape(model.init, jax.random.key(0), x)
    optimizer = optax.sgd(0.1, momentum=0.9)

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, stats, state, x, y):
        def of_params(params):
            logits, new = model.apply(params, stats, None, x)
            return classes(logits, y), new

        (value, new), gradients = jax.value_and_grad(of_params, has_aux=True)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), new, state, value

    return step, (params, stats, jax.eval_shape(optimizer.init, params), x, ids(64))


@loss
def haiku_char_rnn():
    import haiku as hk

    def forward(tokens):
        x = jax.nn.one_hot(tokens.T, 256)
        core = hk.DeepRNN([hk.LSTM(512), jax.nn.relu, hk.LSTM(512), hk.nets.MLP([512, 256])])
        made, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
        return made.swapaxes(0, 1)

    model, tokens = hk.without_apply_rng(hk.transform(forward)), ids(128, 128)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    return lambda p, t: next_tokens(model.apply(p, t), t), (params, tokens)


@loss
def haiku_vq_vae():
    import haiku as hk

    def forward(x):
        for features in (64, 128):
            x = jax.nn.relu(hk.Conv2D(features, 4, 2)(x))
        x = hk.Conv2D(64, 1)(x)
        found = hk.nets.VectorQuantizer(64, 1024, 0.25)(x, is_training=True)
        x = found["quantize"]
        for features in (128, 64):
            x = jax.nn.relu(hk.Conv2DTranspose(features, 4, 2)(x))
        return hk.Conv2D(3, 1)(x), found["loss"]

    model, x = hk.without_apply_rng(hk.transform(forward)), array(64, 64, 64, 3)
    params = jax.eval_shape(model.init, jax.random.key(0), x)

    def run(params, x):
        made, commitment = model.apply(params, x)
        return jnp.mean((made - x) ** 2) + commitment

    return run, (params, x)


# -- transformers ---------------------------------------------------------------------------------


def _transformers(model, config, *inputs, **options):
    """Return a model's apply with its parameters, without making any."""
    module = model.module_class(config, dtype=options.pop("dtype", F32))
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs))
    return module, params


@step
def transformers_bert_mlm():
    import optax
    from transformers import BertConfig, FlaxBertForMaskedLM

    config = BertConfig(num_hidden_layers=4)
    tokens = jnp.zeros((1, 8), I32)
    given = (tokens, tokens, tokens, tokens, None)
    module, params = _transformers(FlaxBertForMaskedLM, config, *given)

    def of_params(params, tokens, mask, labels, key):
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        types = jnp.zeros_like(tokens)
        given = (tokens, mask, types, places, None)
        made = module.apply(params, *given, deterministic=False, rngs={"dropout": key})
        each = optax.softmax_cross_entropy_with_integer_labels(made.logits, labels)
        return jnp.sum(each * mask) / jnp.sum(mask)

    batch = [ids(16, 256) for _ in range(3)]
    return trained(of_params, optax.adamw(1e-4), params, *batch, key())


@loss
def transformers_gpt2():
    from transformers import FlaxGPT2LMHeadModel, GPT2Config

    config = GPT2Config(n_layer=4)
    tokens = jnp.zeros((1, 8), I32)
    module, params = _transformers(FlaxGPT2LMHeadModel, config, tokens, tokens, tokens)

    def run(params, tokens):
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        made = module.apply(params, tokens, jnp.ones_like(tokens), places)
        return next_tokens(made.logits, tokens)

    return run, (params, ids(8, 1024))


@loss
def transformers_bart():
    from transformers import BartConfig, FlaxBartForConditionalGeneration

    config = BartConfig(
        d_model=512,
        encoder_layers=3,
        decoder_layers=3,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        vocab_size=32000,
    )
    tokens = jnp.zeros((1, 8), I32)
    module, params = _transformers(FlaxBartForConditionalGeneration, config, *[tokens] * 6)

    def run(params, source, target):
        places = [
            jnp.broadcast_to(jnp.arange(each.shape[1]), each.shape) for each in (source, target)
        ]
        ones = jnp.ones_like(source), jnp.ones_like(target)
        made = module.apply(params, source, ones[0], target, ones[1], *places)
        return next_tokens(made.logits, target)

    return run, (params, ids(16, 512), ids(16, 128))


@step
def transformers_vit():
    import optax
    from transformers import FlaxViTForImageClassification, ViTConfig

    config = ViTConfig(num_hidden_layers=4, num_labels=1000)
    module, params = _transformers(
        FlaxViTForImageClassification, config, jnp.zeros((1, 224, 224, 3)), dtype=BF16
    )
    of_params = lambda p, x, y: classes(module.apply(p, x).logits.astype(F32), y)
    x = array(64, 224, 224, 3)
    return trained(of_params, optax.adamw(1e-4), params, x, ids(64), donate_argnums=(0, 1))


@loss
def transformers_llama():
    from transformers import FlaxLlamaForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2752, num_hidden_layers=3, num_attention_heads=16
    )
    tokens = jnp.zeros((1, 8), I32)
    module, params = _transformers(FlaxLlamaForCausalLM, config, tokens, tokens, tokens, dtype=BF16)

    def run(params, tokens):
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        made = module.apply(params, tokens, jnp.ones_like(tokens), places)
        return next_tokens(made.logits.astype(F32), tokens)

    return run, (params, ids(4, 1024))


@loss
def transformers_clip():
    import optax
    from transformers import CLIPConfig, FlaxCLIPModel

    config = CLIPConfig(
        text_config={"num_hidden_layers": 3}, vision_config={"num_hidden_layers": 3}
    )
    tokens = jnp.zeros((1, 8), I32)
    pixels = jnp.zeros((1, 224, 224, 3))
    module, params = _transformers(FlaxCLIPModel, config, tokens, pixels, tokens, tokens)

    def run(params, tokens, pixels):
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        made = module.apply(params, tokens, pixels, jnp.ones_like(tokens), places)
        each = optax.softmax_cross_entropy_with_integer_labels(
            made.logits_per_image, jnp.arange(tokens.shape[0])
        )
        return each.mean()

    return run, (params, ids(128, 77), array(128, 224, 224, 3))


# -- JAX alone ------------------------------------------------------------------------------------


@loss
def jax_dot_product_attention():
    """A decoder with JAX's attention, grouped heads and a causal mask."""

    def run(params, tokens):
        x = params["embed"][tokens]

        def layer(x, w):
            q = jnp.einsum("bnd,dhk->bnhk", x, w["q"])
            k, v = (jnp.einsum("bnd,dhk->bnhk", x, w[name]) for name in "kv")
            y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + jnp.einsum("bnhk,hkd->bnd", y, w["o"])
            return x + jax.nn.silu(x @ w["gate"]) * (x @ w["up"]) @ w["down"], None

        x, _ = jax.lax.scan(layer, x, params["layers"])
        logits = (x @ params["embed"].T).astype(F32)
        scores = jax.nn.log_softmax(logits[:, :-1])
        return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], -1))

    made = functools.partial(array, 6, dtype=BF16)
    layers = {
        "q": made(1024, 16, 64),
        "k": made(1024, 4, 64),
        "v": made(1024, 4, 64),
        "o": made(16, 64, 1024),
        "gate": made(1024, 2816),
        "up": made(1024, 2816),
        "down": made(2816, 1024),
    }
    return run, ({"embed": array(32000, 1024, dtype=BF16), "layers": layers}, ids(4, 2048))


@step
def jax_stax_momentum():
    from jax.example_libraries import optimizers, stax

    wide = [(stax.Dense(4096), stax.Relu) for _ in range(4)]
    init, apply = stax.serial(*(each for pair in wide for each in pair), stax.Dense(10))
    init_state, update, params_of = optimizers.momentum(1e-3, mass=0.9)
    state = jax.eval_shape(lambda k: init_state(init(k, (-1, 1024))[1]), jax.random.key(0))

    @jax.jit
    def step(i, state, x, y):
        of_params = lambda p: -jnp.mean(jnp.sum(jax.nn.log_softmax(apply(p, x)) * y, axis=1))
        return update(i, jax.grad(of_params)(params_of(state)), state)

    return step, (ids(), state, array(8192, 1024), array(8192, 10))


@loss
def jax_odeint():
    from jax.experimental.ode import odeint

    def run(params, x):
        def field(x, t, up, down):
            return jnp.tanh(x @ up) @ down

        made = odeint(field, x, jnp.linspace(0.0, 1.0, 9), *params)
        return jnp.mean(made[-1] ** 2)

    return run, ((array(512, 2048), array(2048, 512)), array(16384, 512))


# -- optax ----------------------------------------------------------------------------------------


@loss
def optax_ctc():
    import optax

    def run(params, x, lengths, labels, label_lengths):
        for w in params["layers"]:
            x = jax.nn.relu(x @ w)
        padding = (jnp.arange(x.shape[1]) >= lengths[:, None]).astype(F32)
        label_padding = (jnp.arange(labels.shape[1]) >= label_lengths[:, None]).astype(F32)
        return optax.ctc_loss(x @ params["head"], padding, labels, label_padding).mean()

    params = {"layers": [array(512, 512)] * 3, "head": array(512, 1024)}
    return run, (params, array(64, 500, 512), ids(64), ids(64, 100), ids(64))


@step
def optax_private_gradients():
    import optax

    def of_one(params, x, y):
        for w, b in params[:-1]:
            x = jax.nn.relu(x @ w + b)
        w, b = params[-1]
        return optax.softmax_cross_entropy_with_integer_labels(x @ w + b, y)

    sizes = (784, 512, 512, 10)
    params = [(array(a, b), array(b)) for a, b in itertools.pairwise(sizes)]
    optimizer = optax.contrib.dpsgd(0.1, 1.0, 1.1, 0)

    @jax.jit
    def step(params, state, x, y):
        gradients = jax.vmap(jax.grad(of_one), (None, 0, 0))(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    return step, (params, jax.eval_shape(optimizer.init, params), array(256, 784), ids(256))


@step
def optax_multi_steps():
    import optax

    def of_params(params, x, y):
        for w in params:
            x = x + jax.nn.gelu(x @ w[0]) @ w[1]
        return jnp.mean(optax.huber_loss(x, y))

    params = [(array(1024, 4096), array(4096, 1024)) for _ in range(6)]
    optimizer = optax.MultiSteps(optax.adam(1e-3), 4).gradient_transformation()
    return trained(of_params, optimizer, params, array(4096, 1024), array(4096, 1024))


@step
def optax_nt_xent():
    """A contrastive step with cosine similarities."""
    import optax

    def of_params(params, x, y):
        def embedded(x):
            for w in params:
                x = jax.nn.relu(x @ w)
            return x / jnp.linalg.norm(x, axis=1, keepdims=True)

        scores = embedded(x) @ embedded(y).T / 0.1
        return classes(scores, jnp.arange(x.shape[0]))

    params = [array(1024, 1024)] * 3
    x = array(8192, 1024)
    return trained(of_params, optax.lamb(1e-3), params, x, x)


# -- others ---------------------------------------------------------------------------------------


@loss
def diffrax_neural_ode():
    import diffrax
    import equinox as eqx

    field = eqx.filter_eval_shape(
        lambda: eqx.nn.MLP(64, 64, 512, 2, activation=jax.nn.softplus, key=jax.random.key(0))
    )
    arrays, static = eqx.partition(field, lambda leaf: hasattr(leaf, "dtype"))

    def run(arrays, x):
        field = eqx.combine(arrays, static)
        term = diffrax.ODETerm(lambda t, y, args: jax.vmap(field)(y))
        solved = diffrax.diffeqsolve(
            term,
            diffrax.Tsit5(),
            t0=0.0,
            t1=1.0,
            dt0=0.05,
            y0=x,
            saveat=diffrax.SaveAt(t1=True),
            max_steps=32,
        )
        return jnp.mean(solved.ys**2)

    return run, (arrays, array(16384, 64))


@loss
def numpyro_bayesian_network():
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.util import log_density

    def model(x, y):
        normal = lambda name, *shape: numpyro.sample(
            name, dist.Normal(jnp.zeros(shape), 1.0).to_event(len(shape))
        )
        h = jnp.tanh(x @ normal("w1", x.shape[1], 512))
        h = jnp.tanh(h @ normal("w2", 512, 512))
        mean = (h @ normal("w3", 512, 1))[:, 0]
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.StudentT(4.0, mean, scale), obs=y)

    params = {"w1": array(64, 512), "w2": array(512, 512), "w3": array(512, 1), "scale": array()}
    return lambda p, x, y: -log_density(model, (x, y), {}, p)[0], (
        params,
        array(131072, 64),
        array(131072),
    )


@loss
def jaxopt_multiclass():
    import jaxopt

    def run(params, x, y):
        scores = jax.nn.relu(x @ params["w"]) @ params["head"]
        losses = jax.vmap(jaxopt.loss.multiclass_logistic_loss)(y, scores)
        return losses.mean() + 0.5e-4 * jaxopt.tree_util.tree_l2_norm(params, squared=True)

    params = {"w": array(512, 2048), "head": array(2048, 1000)}
    return run, (params, array(65536, 512), ids(65536))


@step
def rlax_actor_critic():
    import optax
    import rlax

    def of_params(params, x, actions, rewards, discounts):
        for w in params["trunk"]:
            x = jax.nn.relu(x @ w)
        logits, values = x @ params["policy"], (x @ params["value"])[..., 0]
        targets = jax.vmap(rlax.lambda_returns, (0, 0, 0, None))(
            rewards, discounts, values[:, 1:], 0.9
        )
        advantages = jax.lax.stop_gradient(targets - values[:, :-1])
        policy = jax.vmap(rlax.policy_gradient_loss)(
            logits[:, :-1], actions, advantages, jnp.ones_like(advantages)
        )
        return policy.mean() + 0.5 * jnp.mean((targets - values[:, :-1]) ** 2)

    params = {
        "trunk": [array(256, 1024), array(1024, 1024), array(1024, 1024)],
        "policy": array(1024, 18),
        "value": array(1024, 1),
    }
    batch = array(512, 65, 256), ids(512, 64), array(512, 64), array(512, 64)
    return trained(of_params, optax.rmsprop(1e-3), params, *batch)


@loss
def distrax_flow():
    import distrax
    import haiku as hk

    def conditioner(x):
        x = hk.nets.MLP([512, 512], activate_final=True)(x)
        return hk.Linear(64 * 25)(x).reshape(*x.shape[:-1], 64, 25)

    def density(x):
        flow = []
        for i in range(4):
            flow.append(
                distrax.MaskedCoupling(
                    mask=jnp.arange(64) % 2 == i % 2,
                    bijector=lambda p: distrax.RationalQuadraticSpline(p, -5.0, 5.0),
                    conditioner=conditioner,
                )
            )
        base = distrax.Independent(distrax.Normal(jnp.zeros(64), jnp.ones(64)), 1)
        return distrax.Transformed(base, distrax.Inverse(distrax.Chain(flow))).log_prob(x)

    model, x = hk.without_apply_rng(hk.transform(density)), array(4096, 64)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    return lambda p, x: -jnp.mean(model.apply(p, x)), (params, x)
