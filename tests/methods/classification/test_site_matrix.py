"""Products and determinants of (K^-1 + W)^-1 against dense inverses."""

import pytest
import torch

from gpx.errors import NotPositiveDefinite
from gpx.methods.classification.site_matrix import (
    ClassSites,
    ScalarSites,
    SeparateSites,
    site_matrix,
)

N, P = 9, 3


def draws(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).double()


def case(p, separate=False):
    """K (n, n), w, W (n p, n p) in the order of a flattened (n, p), and K for all of these."""
    root = draws(N, N)
    kernel = root @ root.mT / N + 0.1 * torch.eye(N).double()
    if p == 1:
        w = draws(N).abs()
        return kernel, w, w.diag(), kernel
    w = draws(N, p).softmax(1)
    blocks = [row.diag() - (0.0 if separate else torch.outer(row, row)) for row in w]
    return kernel, w, torch.block_diag(*blocks), torch.kron(kernel, torch.eye(p).double())


@pytest.mark.parametrize(
    ("p", "separate", "kind"),
    [
        (1, False, ScalarSites),
        (1, True, ScalarSites),
        (P, False, ClassSites),
        (P, True, SeparateSites),
    ],
)
def test_against_dense_algebra(p, separate, kind):
    kernel, w, whole_w, whole = case(p, separate)
    sites = site_matrix(kernel, w, separate=separate)
    assert type(sites) is kind
    identity = torch.eye(len(whole)).double()
    inner = identity + whole_w @ whole
    precision = torch.linalg.solve(inner, whole_w)  # (I + W K)^-1 W = R
    torch.testing.assert_close(sites.log_determinant, torch.logdet(inner), rtol=1e-11, atol=0.0)
    v = draws(*w.shape, 1)[..., 0]
    flat = v.reshape(-1)
    close = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(sites.solve(v).reshape(-1), precision @ flat, **close)
    basis = [sites.root(e.view(w.shape)).reshape(-1) for e in identity]
    root = torch.stack(basis, 1)
    torch.testing.assert_close(root @ root.mT, whole_w, **close)
    blocks = precision.view(N, p, N, p)
    torch.testing.assert_close(sites.precision(), blocks.diagonal(dim1=1, dim2=3).sum(-1), **close)
    cross = draws(4, N)
    taken = torch.einsum("tn,npmq,tm->tpq", cross, blocks, cross)
    want = taken[:, 0, 0] if p == 1 else taken
    torch.testing.assert_close(sites.variance_reduction(cross), want, **close)


def test_sites_of_zero_precision():
    kernel, w, _, _ = case(1)
    sites = site_matrix(kernel, 0.0 * w)
    assert float(sites.log_determinant) == 0.0
    assert (sites.precision() == 0.0).all()
    assert (sites.variance_reduction(kernel) == 0.0).all()


def test_a_kernel_of_nan_is_refused():
    kernel, w, _, _ = case(1)
    with pytest.raises(NotPositiveDefinite, match="NaN or infinite"):
        site_matrix(kernel * torch.nan, w)


def test_variances_of_precise_sites_keep_their_digits():
    kernel, w, _, _ = case(1)
    w = w * torch.tensor([1e13, 1e13, 1.0, 1e9, 1e13, 1e5, 1e13, 0.0, 1e13]).double()
    covariance = kernel + torch.diag(1.0 / w.clamp_min(1e-6))  # K + W^-1
    # (K^-1 + W)^-1 = W^-1 - W^-1 (K + W^-1)^-1 W^-1; where w is small, K - K (K + W^-1)^-1 K
    inverse = torch.linalg.inv(covariance)
    expected = torch.where(
        w > 10.0,
        (1.0 - inverse.diagonal() / w) / w,
        (kernel - kernel @ inverse @ kernel).diagonal(),
    )
    found = ScalarSites(kernel, w).posterior_variance(kernel)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0.0)
    assert ((found[w > 1e4] * w[w > 1e4]) < 1.0).all()
