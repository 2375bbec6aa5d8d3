"""The failure that a small divergence cannot show: all data explained as noise."""

from __future__ import annotations

from torch import Tensor

NOISE_SHARE = 0.8
SIGNAL_SHARE = 0.05


def collapse_reason(noise: float, target: Tensor, fitted: Tensor) -> str:
    """Why the model has put everything into the noise, or "" when it has not.

    With too few inducing points the bound is largest at a large noise variance, where its
    divergence from the posterior is tiny: certificates hold there, and are worthless.

    Args:
        noise: variance.
        target, fitted (n,): y, and the posterior mean of f at the training inputs.

    Source: Burt thesis, section 2.5.2; the thresholds are ours.
    """
    total = float(target.var(correction=0))
    if noise > NOISE_SHARE * total:
        return f"the noise variance {noise:.3g} is more than 80 % of the targets' {total:.3g}"
    explained = float(fitted.var(correction=0))
    if explained < SIGNAL_SHARE * total:
        return (
            f"the fitted means vary by {explained:.3g}, less than 5 % of the targets' {total:.3g}"
        )
    return ""
