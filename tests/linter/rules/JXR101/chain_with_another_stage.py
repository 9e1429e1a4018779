import jax


def forward(w, x):
    return jax.nn.gelu(x @ w)


def evaluate(w, x):
    return jax.checkpoint(forward)(w, x)


def loss(w, head, x):
    return head(w, evaluate(w, x)).sum()


def step(w, head, x):
    return jax.value_and_grad(loss)(w, head, x)
