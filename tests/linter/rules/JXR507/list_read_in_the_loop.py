import jax


def model(ws, xs):
    for w in ws:
        outputs = []
        outputs.append(jax.checkpoint(lambda x: x @ w))
        xs = [f(x) for f, x in zip(outputs, xs)]
    return xs
