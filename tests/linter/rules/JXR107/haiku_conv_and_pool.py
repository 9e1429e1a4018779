import haiku as hk


def stem(x):
    x = hk.remat(hk.Conv1D(8, 3))(x)  # !
    return hk.remat(hk.AvgPool(2, 2, "SAME"))(x)  # !
