"""Detects models that explain all data as noise, a failure that certificates do not show."""

from __future__ import annotations

from torch import Tensor

MAX_NOISE_SHARE = 0.8
"""Largest noise variance, relative to the variance of the targets."""

MIN_SIGNAL_SHARE = 0.05
"""Smallest variance of the fitted means, relative to the variance of the targets."""


def collapse_reason(noise: float, target: Tensor, fitted: Tensor) -> str:
    """Why the model explains the data as noise, or "" if it does not.

    With too few inducing points the evidence bound may be largest at a large noise variance, where
    the divergence from the posterior is tiny: certificates hold there but are worthless.

    Args:
        noise: variance.
        target, fitted (n,): y, and the posterior mean of f at the training inputs.

    Source: Burt thesis, section 2.5.2, which has no thresholds.
    """
    total = float(target.var(correction=0))
    if noise > MAX_NOISE_SHARE * total:
        return f"the noise variance {noise:.3g} is more than 80 % of the targets' {total:.3g}"
    explained = float(fitted.var(correction=0))
    if explained < MIN_SIGNAL_SHARE * total:
        return (
            f"the fitted means vary by {explained:.3g}, less than 5 % of the targets' {total:.3g}"
        )
    return ""
