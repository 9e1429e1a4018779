import jax


def forward(w, x):
    return jax.nn.gelu(x @ w)


def evaluate(w, x):
    return jax.checkpoint(forward)(w, x).sum()


def loss(w, xs):
    return jax.lax.map(lambda x: evaluate(w, x), xs).sum()


step = jax.value_and_grad(loss)
