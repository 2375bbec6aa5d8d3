"""Derivatives of predictions by their inputs, against differences."""

import torch


def check(predict, x, *, rtol=1e-4, length=1e-5):
    """Check values and derivatives of all tensors of ``predict(x)`` at x (n, d), float64.

    Args:
        length: of steps; what has an error, as solves do, takes longer ones.
    """
    asked = x.clone().requires_grad_()
    found, plain = predict(asked), predict(x)
    for own, other in zip(found, plain, strict=True):
        assert not other.requires_grad
        torch.testing.assert_close(own.detach(), other, rtol=1e-8, atol=1e-10)
    step = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)).double() - 0.5
    step *= length
    ends = [predict(x + sign * step) for sign in (1.0, -1.0)]
    for place, value in enumerate(found):
        weights = torch.linspace(0.5, 1.5, value.numel()).double().reshape(value.shape)
        (slope,) = torch.autograd.grad((weights * value).sum(), asked, retain_graph=True)
        change = (weights * (ends[0][place] - ends[1][place])).sum() / 2.0
        # zero only where the prediction does not move, as the mean of an untrained deep process
        assert bool(slope.any()) or torch.equal(ends[0][place], ends[1][place])
        torch.testing.assert_close((slope * step).sum(), change, rtol=rtol, atol=1e-12)
