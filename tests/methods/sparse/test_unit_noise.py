"""Rows of unequal noise, scaled to noise of one variance."""

import torch

from gpx.methods.sparse.unit_noise import scale_to_common_noise


def test_one_variance_leaves_the_rows_as_they_are():
    noise, residual = torch.tensor(0.3, dtype=torch.float64), torch.randn(4)
    rows = scale_to_common_noise(noise, residual)
    assert rows.scale is None
    assert rows.residual is residual
    assert rows.noise is noise


def test_scaled_rows_have_the_density_of_the_given_ones():
    noise = torch.tensor([0.25, 4.0, 1.0], dtype=torch.float64)
    residual = torch.tensor([1.0, -2.0, 0.5])
    rows = scale_to_common_noise(noise, residual)
    assert rows.scale.tolist() == [2.0, 0.5, 1.0]
    assert rows.residual.tolist() == [2.0, -1.0, 0.5]
    assert rows.residual.dtype == residual.dtype
    assert rows.noise.item() == 1.0
    given = torch.distributions.Normal(0.0, noise.sqrt()).log_prob(residual.double()).sum()
    scaled = torch.distributions.Normal(0.0, rows.noise).log_prob(rows.residual.double()).sum()
    torch.testing.assert_close(scaled + rows.scale.log().sum(), given)
