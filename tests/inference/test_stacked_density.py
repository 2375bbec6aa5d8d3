"""Log densities of many vectors against torch's multivariate normal."""

import pytest
import torch
from torch.distributions import MultivariateNormal

from gpx.constants import LOG_TWO_PI
from gpx.inference.stacked_density import stacked_density


def system(b=3, m=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(b, m, m, generator=generator).double()
    residual = torch.randn(b, m, generator=generator).double()
    return root @ root.mT, residual, torch.rand(b, m, generator=generator).double() + 0.1


@pytest.mark.parametrize("counts", [None, (5, 3, 1)], ids=["whole", "padded"])
def test_values_and_gradients_are_those_of_a_multivariate_normal(counts):
    covariances, residual, noise = system()
    mask = None if counts is None else torch.arange(5) < torch.tensor(counts)[:, None]
    found = stacked_density(covariances, residual, noise, mask, gradient=True)
    assert not found.info.any()
    for i, m in enumerate(counts or (5, 5, 5)):
        k, r = covariances[i, :m, :m].clone().requires_grad_(), residual[i, :m].requires_grad_()
        law = MultivariateNormal(r.new_zeros(m), k + noise[i, :m].diag())
        expected = law.log_prob(r)
        by_k, by_r = torch.autograd.grad(expected, [k, r])
        value = found.fit[i] + found.complexity[i] - 0.5 * m * LOG_TWO_PI
        torch.testing.assert_close(value, expected.detach())
        torch.testing.assert_close(found.alpha[i, :m], -by_r)
        torch.testing.assert_close(found.weight[i, :m, :m], by_k)
        assert not found.alpha[i, m:].any()
        assert not found.weight[i, m:].any()
        assert not found.weight[i, :, m:].any()


def test_a_matrix_without_a_factor_is_told_and_leaves_the_others_alone():
    covariances, residual, noise = system()
    expected = stacked_density(covariances, residual, noise, gradient=True)
    covariances[1] = -torch.eye(5).double()
    found = stacked_density(covariances, residual, noise, gradient=True)
    assert (found.info != 0).tolist() == [False, True, False]
    for name in ("fit", "complexity", "alpha", "weight"):
        rest = torch.tensor([0, 2])
        torch.testing.assert_close(getattr(found, name)[rest], getattr(expected, name)[rest])


def test_values_alone_are_the_same():
    covariances, residual, noise = system()
    found = stacked_density(covariances, residual, noise[:, :1], gradient=False)
    expected = stacked_density(covariances, residual, noise[:, :1], gradient=True)
    assert found.weight is None
    assert torch.equal(found.fit, expected.fit)
    assert torch.equal(found.complexity, expected.complexity)
