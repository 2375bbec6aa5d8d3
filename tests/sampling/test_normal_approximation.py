"""The normal law at a mode is found from gradients."""

import math

import pytest
import torch

from gpx.sampling.normal_approximation import LEAST_CURVATURE, normal_approximation


def of(log_density):
    """Densities and gradients of a function (C, k) -> (C,), counted."""

    def densities(positions):
        densities.calls += len(positions)
        at = positions.detach().requires_grad_()
        values = log_density(at)
        gradients = torch.autograd.grad(values.sum(), at)[0]
        return values.detach(), torch.where(values.isfinite().unsqueeze(1), gradients, 0.0)

    densities.calls = 0
    return densities


def test_a_normal_law_is_found_exactly():
    factor = torch.tensor([[0.3, 0.0, 0.0], [0.2, 0.5, 0.0], [-0.1, 0.3, 0.02]]).double()
    precision, centre = torch.cholesky_inverse(factor), torch.tensor([1.0, -2.0, 3.0]).double()
    densities = of(lambda u: -0.5 * (((u - centre) @ precision) * (u - centre)).sum(1))
    mode, root = normal_approximation(densities, torch.zeros(3).double())
    torch.testing.assert_close(mode, centre, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(root @ root.mT, factor @ factor.mT, rtol=1e-6, atol=1e-9)
    assert densities.calls <= 1 + 3 * 11


def test_a_skewed_law_from_where_it_bends_upwards():
    """A Student density with 3 degrees of freedom, from eight scales away: convex there."""
    densities = of(lambda u: -2.0 * (u.square() / (3.0 * 0.01)).log1p().sum(1))
    mode, root = normal_approximation(densities, torch.tensor([0.8, -0.8]).double())
    assert float(mode.abs().max()) < 0.02
    # differences over a tenth of the scale see the curvature 4 / 0.03 within a few per cent
    torch.testing.assert_close(
        root @ root.mT, 0.03 / 4.0 * torch.eye(2).double(), rtol=0.05, atol=1e-4
    )


def test_directions_in_which_a_density_hardly_falls_have_the_largest_deviation():
    densities = of(lambda u: -0.5 * (u[:, 0] / 0.1).square() - 1e-3 * u[:, 1].square())
    mode, root = normal_approximation(densities, torch.tensor([0.3, 0.0]).double())
    assert float(mode[0].abs()) < 1e-6
    found = (root @ root.mT).diagonal()
    assert found.tolist() == pytest.approx([0.01, 1.0 / LEAST_CURVATURE])


def test_a_mode_at_a_wall_is_approached_from_inside():
    """Beyond it there is no density: differences there are one-sided."""
    densities = of(
        lambda u: torch.where(u[:, 0] < 1.0, 3.0 * u[:, 0] - u[:, 0].square(), -math.inf)
    )
    mode, root = normal_approximation(densities, torch.zeros(1).double())
    assert 0.5 < float(mode) < 1.0
    assert float(root.square()) == pytest.approx(0.5, rel=1e-6)
