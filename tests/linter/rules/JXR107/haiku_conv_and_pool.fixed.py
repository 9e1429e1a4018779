import haiku as hk


def stem(x):
    x = hk.Conv1D(8, 3)(x)
    return hk.AvgPool(2, 2, "SAME")(x)
