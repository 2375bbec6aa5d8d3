"""Covariances of groups against those of each group alone."""

import pytest
import torch

from gpx.inference import batched_covariance as module
from gpx.inference.batched_covariance import batched_covariances
from gpx.kernels import RBF, Linear, Matern12, Matern52, Stationary, Sum

X = torch.rand(3, 7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
KERNELS = {
    "sum": lambda: Matern52(2) + Matern12(active_dims=[0]),
    "product": lambda: RBF(2) * Matern52(active_dims=[1]),
    "sum of products": lambda: RBF(2) * Matern12(2) + Matern52(2),
    "with a linear part": lambda: RBF(2) + Linear(2),
}


@pytest.mark.parametrize("name", KERNELS)
def test_parts_that_have_a_profile_are_made_in_one_pass_each(monkeypatch, name):
    """The whole was an expression of distances, which took three times as long."""
    kernel, made, fused = KERNELS[name]().double(), [], module.stationary_covariance
    stationary = [part for part in kernel.modules() if isinstance(part, Stationary)]

    def noted(*arguments, **options):
        made.append(1)
        return fused(*arguments, **options)

    monkeypatch.setattr(module, "stationary_covariance", noted)
    for right in (None, X[:, :4] + 0.1):
        made.clear()
        found = batched_covariances(kernel, X, right)
        assert len(made) == len(stationary)
        others = [None] * 3 if right is None else list(right)
        want = torch.stack([kernel.evaluate(x, y) for x, y in zip(X, others, strict=True)])
        torch.testing.assert_close(found, want)
        weights = torch.rand(found.shape, generator=torch.Generator().manual_seed(1)).double()
        parameters = list(kernel.parameters())
        gradients = torch.autograd.grad((found * weights).sum(), parameters)
        expected = torch.autograd.grad((want * weights).sum(), parameters)
        for own, each in zip(gradients, expected, strict=True):
            torch.testing.assert_close(own, each)


def test_a_subclass_of_a_sum_that_computes_something_else_is_not_taken_apart():
    class Halved(Sum):
        def covariance(self, x1, x2):
            return 0.5 * super().covariance(x1, x2)

        def variance(self, x):
            return 0.5 * super().variance(x)

    kernel = Halved([RBF(2), Matern12(2)]).double()
    want = torch.stack([kernel.evaluate(x) for x in X])
    torch.testing.assert_close(batched_covariances(kernel, X), want)
