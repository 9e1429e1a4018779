from module import pair


def stage(ws, x):
    return pair(ws[2:], pair(ws[:2], x))
