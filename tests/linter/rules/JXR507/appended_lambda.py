from jax import remat as ckpt


def layers(ws):
    found = []
    for w in ws:
        found.append(ckpt(lambda x: x @ w, prevent_cse=False))  # !
    return found
