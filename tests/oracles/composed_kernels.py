"""Kernels of several parts for tests of kernel matrices, over two inputs."""

from gpx.kernels import Linear, Matern12, Matern32, Matern52, Periodic, Stationary


def make_kernel():
    return Matern32(2, [0.8, 1.3], 1.4) + Linear(None, 0.3, active_dims=[1])


def periodic():
    return Periodic(None, active_dims=[1]) * Matern12(None, 0.9, None, [0]) * 1.7 + 0.3


def plain():
    """A user's kernel without an in-place profile."""

    class Cauchy(Stationary):
        def of_squared_distance(self, r2):
            return 1.0 / (1.0 + r2)

    return Cauchy(2, [0.8, 1.3], 1.4)


KERNELS = [make_kernel, periodic, plain, lambda: Matern52(2, [0.8, 1.3], 1.4)]
