"""What posteriors of several targets and their evidences must agree with."""

import io

import torch
from torch.testing import assert_close

from gpx.likelihoods.base import target_marginals


def require_value_and_gradient(found, want, parameters, *, rtol=1e-12, least=1e-3):
    """An evidence is ``want`` (), and so are its slopes, which are above ``least`` somewhere."""
    assert found.kind == "exact"
    assert_close(found.value, want, rtol=rtol, atol=rtol)
    assert_close(sum(found.parts.values()), want.detach(), rtol=rtol, atol=rtol)
    slopes = torch.autograd.grad(found.value, parameters)
    for slope, right in zip(slopes, torch.autograd.grad(want, parameters), strict=True):
        assert right.abs().max() > least
        assert_close(slope, right, rtol=1e-9, atol=1e-9)


def require_posterior(model, posterior, new, mean, covariance, noise):
    """Its predictions are those of a mean (t, p) and a covariance (t p, t p) of rows by targets.

    So are the predictions of its state, loaded into a new posterior.

    Args:
        covariance: that of all rows for the first target comes first.
        noise (p,): variances of the targets.

    Returns:
        the covariance (t, p, p) of each row.
    """
    t, p = mean.shape
    jointly = covariance.view(p, t, p, t).permute(1, 0, 3, 2)
    each = torch.stack([jointly[i, :, i] for i in range(t)])
    found = posterior.predict(new)
    assert_close(found.mean, mean, rtol=1e-9, atol=1e-9)
    assert_close(found.variance, each.diagonal(dim1=1, dim2=2), rtol=1e-9, atol=1e-9)
    assert_close(posterior.outputs_covariance(new), jointly, rtol=1e-9, atol=1e-9)
    law = posterior.predictive(new, model.likelihood)
    assert_close(law.covariance_matrix, each + noise.diag(), rtol=1e-9, atol=1e-9)
    assert_close(target_marginals(law).mean, mean, rtol=1e-9, atol=1e-9)
    buffer = io.BytesIO()
    torch.save(posterior.state_dict(), buffer)
    buffer.seek(0)
    again = model.new_posterior()
    again.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(again.predict(new).mean, found.mean)
    assert_close(again.predict(new).variance, found.variance)
    return each


def require_moments_of_functions(posterior, new, *, within):
    """2,000 functions drawn from it have its mean and covariance at each row of ``new`` (t, d)."""
    mean, covariance = posterior.joint_outputs(new)
    paths = posterior.sample_paths(2_000, generator=torch.Generator().manual_seed(3))
    values = paths(new)
    assert values.shape == (2_000, *mean.shape)
    assert_close(paths(new[:2]), values[:, :2])
    error = values - mean
    scatter = covariance.diagonal(dim1=1, dim2=2).sqrt() / 2_000**0.5
    assert (error.mean(0).abs() < 5.0 * scatter + 0.02).all()
    sampled = torch.einsum("kti,ktj->tij", error, error) / 2_000
    # the 2,048 shared frequencies leave some per cent of the prior's variance
    assert_close(sampled, covariance, rtol=within, atol=within)
