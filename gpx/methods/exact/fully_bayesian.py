"""Exact Gaussian process regression averaged over its hyperparameters."""

from __future__ import annotations

import warnings
from typing import ClassVar

from torch import Tensor

from gpx.inference.sampled_hyperparameters import SampledHyperparameters
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.exact.model import ExactGP
from gpx.warned_line import users_line

MANY_ROWS = 3000
"""Rows above which a CPU needs more than a second for an evidence and its gradient."""


class FullyBayesianGP(SampledHyperparameters, ExactGP):  # type: ignore[misc]  # other posterior
    """Gaussian process regression averaged over the posterior of its hyperparameters.

    ``optimizer=hamiltonian`` draws hyperparameters from p(theta | y), and predictions are the
    mixture of the exact processes at these. The error bars then have the uncertainty of the
    hyperparameters, which matters where rows are few. Priors: ``hyperpriors``, and weak ones of all
    hyperparameters that have none there (``HyperPriors``).

    Args:
        kernel, mean, likelihood: the likelihood must be Gaussian.

    Cost: see ``HamiltonianChains`` and ``HyperparameterMixture``; n^3 multiply-adds for an evidence
    with its gradient.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("samples",)

    def __init__(self, *, kernel: Kernel, mean: Mean, likelihood: Gaussian) -> None:
        super().__init__(kernel=kernel, mean=mean, likelihood=likelihood, solver="cholesky")
        self._register_samples()

    def check(self, x: Tensor) -> None:
        """As in ``Model``; warns where chains would take hours."""
        super().check(x)
        if len(x) > MANY_ROWS and x.is_cpu:
            warnings.warn(
                f"chains take thousands of evidences, each with a factorisation of {len(x):,} rows "
                "(n^3): model=FullyBayesianSGPR() takes n M^2, and with so many rows "
                "model=ExactGP() or SGPR() hardly predict differently",
                stacklevel=users_line(),
            )
