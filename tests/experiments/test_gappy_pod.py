"""Gappy proper orthogonal decomposition: low-rank fields, its fixed point."""

import pytest
import torch
from gappy_pod import fill_by_temporal_modes, gappy_pod, leading_part


def low_rank_field(rank=5, size=(60, 40), share=0.2, noise=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(size[0], rank, generator=generator).double()
    right = torch.randn(rank, size[1], generator=generator).double()
    truth = left @ right + 3.0
    values = truth + noise * torch.randn(size, generator=generator).double()
    observed = torch.rand(size, generator=generator) >= share
    return truth, values, observed


def run(values, observed, **options):
    return gappy_pod(values, observed, generator=torch.Generator().manual_seed(1), **options)


def test_recovers_a_field_of_rank_five():
    truth, values, observed = low_rank_field()
    found = run(values.masked_fill(~observed, torch.nan), observed, tolerance=1e-7)
    error = (found.filled - truth)[~observed].norm() / truth[~observed].norm()
    assert error < 1e-2
    assert found.converged
    # the mean of what is observed is off by a constant in time: a sixth mode
    assert found.held_out[4] > 1e-2 > 1e4 * found.held_out[5]
    assert found.rank >= 6
    assert torch.equal(found.filled[observed], values[observed])


def test_held_out_error_chooses_the_rank_under_noise():
    truth, values, observed = low_rank_field(rank=3, noise=0.5)
    found = run(values, observed)
    assert found.rank == 4  # three, and the error of the mean
    assert found.held_out.argmin() == 3
    assert len(found.held_out) == 7  # patience: three ranks without a better one
    error = (found.low_rank - truth)[~observed].square().mean().sqrt()
    assert error < 0.5 * values.std()


def test_gaps_are_a_fixed_point_of_the_reconstruction():
    _, values, observed = low_rank_field(rank=2, size=(20, 12))
    found = run(values, observed, tolerance=1e-6, max_rank=1)
    mean = (values * observed).sum(1, keepdim=True) / observed.sum(1, keepdim=True)
    u, s, v = torch.linalg.svd(found.filled - mean, full_matrices=False)
    again = (u[:, : found.rank] * s[: found.rank]) @ v[: found.rank] + mean
    torch.testing.assert_close(again[~observed], found.filled[~observed], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [(7, 4), (4, 7), (5, 5)])
def test_leading_part_is_the_truncated_svd(size):
    matrix = torch.randn(size, generator=torch.Generator().manual_seed(2)).double()
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    torch.testing.assert_close(leading_part(matrix, 3), (u[:, :3] * s[:3]) @ v[:3])


def test_stops_short_and_says_so():
    _, values, observed = low_rank_field()
    found = run(values, observed, max_iterations=2, tolerance=1e-12, max_rank=2)
    assert not found.converged
    assert found.iterations == 2
    assert found.change > 1e-12


def test_known_modes_in_time_fill_a_field_of_their_rank():
    truth, values, observed = low_rank_field(rank=3)
    modes = torch.linalg.svd(truth - truth.mean(1, keepdim=True))[2][:4]
    filled = fill_by_temporal_modes(values.masked_fill(~observed, torch.nan), observed, modes)
    assert torch.allclose(filled, truth, atol=1e-9)


def test_known_modes_with_a_prior_are_the_posterior_mean():
    generator = torch.Generator().manual_seed(2)
    modes = torch.randn(2, 8, generator=generator).double()
    values = torch.randn(1, 8, generator=generator).double()
    observed = torch.tensor([[True, True, False, True, False, True, True, False]])
    filled = fill_by_temporal_modes(values, observed, modes, noise_variance=0.3)
    # the covariance of the series, with a constant of next to no information
    cov = modes.T @ modes + 1e7
    at = observed[0]
    inner = cov[at][:, at] + 0.3 * torch.eye(int(at.sum())).double()
    expected = cov[:, at] @ torch.linalg.solve(inner, values[0, at])
    assert torch.allclose(filled[0], expected, atol=1e-5)
