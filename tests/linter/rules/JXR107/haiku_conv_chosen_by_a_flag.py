import haiku as hk


class Net(hk.Module):
    def __init__(self, remat=False):
        super().__init__()
        self._conv = hk.Conv2D(output_channels=8, kernel_shape=7, name="conv")
        if remat:
            self._conv = hk.remat(self._conv)  # !

    def __call__(self, x):
        return self._conv(x)
