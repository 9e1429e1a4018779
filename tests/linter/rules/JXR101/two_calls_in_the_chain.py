import jax


def forward(w, x):
    return jax.nn.gelu(x @ w)


def evaluate(w, x):
    return jax.checkpoint(forward)(w, x).sum()


def loss(w, x, y):
    return evaluate(w, x) + evaluate(w, y)


step = jax.value_and_grad(loss)
