"""Full Gaussian processes with non-Gaussian likelihoods: Laplace, EP, variational Gaussians."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError, DataError, class_name
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood, is_classification
from gpx.linalg import require_memory
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.classification.mode import find_mode
from gpx.methods.classification.prior_matrix import prior_matrix
from gpx.methods.classification.propagation import propagate
from gpx.methods.classification.site_posterior import SitePosterior
from gpx.methods.classification.variational import fit_gaussian
from gpx.tensor_checks import check_at_least

ARRAYS_PER_EVALUATION = 4
"""float64 arrays of n x n that an evaluation with gradient holds, for one latent function."""


@runtime_checkable
class DenseModel(Protocol):
    """What ``LaplaceEvidence``, ``EPEvidence`` and ``VGPELBO`` require of a model."""

    kernel: Kernel
    mean: Mean
    likelihood: Likelihood

    def gaussian_sites(self, kernel: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Gaussians that replace the likelihood; see ``DenseGP.gaussian_sites``."""


class DenseGP(Model):
    """A Gaussian process on all training points, with Gaussians that replace the likelihood terms.

    Args:
        kernel, mean, likelihood: if the likelihood has p latent functions, they share kernel and
            mean and are independent a priori.
    """

    kernel: Kernel
    mean: Mean
    likelihood: Likelihood

    def __init__(self, *, kernel: Kernel, mean: Mean, likelihood: Likelihood) -> None:
        super().__init__()
        self.kernel = kernel
        self.mean = mean
        self.likelihood = likelihood

    def check(self, x: Tensor) -> None:
        """As in ``Model``; also checks that n x n arrays fit into memory."""
        super().check(x)
        require_arrays(self, x, self.likelihood.num_latents)

    @abstractmethod
    def gaussian_sites(self, kernel: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Weights a and site precisions W of the posterior, see ``SitePosterior``.

        Args:
            kernel (n, n): K, float64.
            x (n, d), y (n,): all training data.
        """

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> SitePosterior:
        """Posterior given x (n, d) and y (n,).

        Raises:
            DataError: targets that the likelihood does not accept.
            DidNotConverge: the approximation did not converge.
            ConfigError: n x n arrays do not fit into memory.
        """
        kernel = kernel_matrix(self, x, y)
        weights, information = self.gaussian_sites(kernel, x, y)
        posterior = self.new_posterior()
        posterior.fill(x, weights, information)
        return posterior

    def new_posterior(self) -> SitePosterior:
        """As in ``Model``."""
        return SitePosterior(self.kernel, self.mean, self.likelihood.num_latents)


class LaplaceGP(DenseGP):
    """Laplace's approximation: a Gaussian at the posterior mode, with the curvature there.

    Exact for a Gaussian likelihood. For classes it is fast and robust, but its probabilities are
    less extreme than those of the true posterior: the mode of the skewed posterior is closer to
    zero than its mean.

    Args:
        kernel, mean, likelihood: the likelihood must be log-concave and define ``curvature``:
            Bernoulli with either link, Ordinal, Softmax (any number of classes), Poisson,
            NegativeBinomial, Gamma.
        max_iterations: most Newton steps.

    Cost: about ten times n^3 / 3 multiply-adds (p n^3 for p classes).
    Source: Williams and Barber 1998; Rasmussen and Williams 2006, sections 3.4 and 3.5.
    """

    starts_by_laplace = True

    def __init__(
        self, *, kernel: Kernel, mean: Mean, likelihood: Likelihood, max_iterations: int = 100
    ) -> None:
        super().__init__(kernel=kernel, mean=mean, likelihood=likelihood)
        check_at_least(1, max_iterations=max_iterations)
        self.max_iterations = max_iterations

    def gaussian_sites(self, kernel: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """As in ``DenseGP``."""
        mode = find_mode(
            kernel,
            self.mean(x).double(),
            self.likelihood,
            y.double(),
            max_iterations=self.max_iterations,
        )
        return mode.weights, mode.sites.information


class ExpectationPropagationGP(DenseGP):
    """Expectation propagation: likelihood terms are replaced by Gaussians by moment matching.

    Exact for a Gaussian likelihood. For two classes it is the most accurate of the Gaussian
    approximations, at a few times the cost of Laplace's. If many counts are zero and the prior is
    wide, most of the posterior mass is far from the mode; moments capture this, Laplace's
    approximation does not.

    Args:
        kernel, mean, likelihood: the likelihood must be log-concave with one latent function and
            define ``tilted`` or ``curvature``: Bernoulli, Ordinal, Poisson, NegativeBinomial,
            Gamma.
        max_sweeps: most sweeps over all sites.

    Cost: ten to twenty times n^3 multiply-adds.
    Source: Minka 2001; Rasmussen and Williams 2006, section 3.6; Kuss and Rasmussen 2005
    (comparison of approximations).
    """

    def __init__(
        self, *, kernel: Kernel, mean: Mean, likelihood: Likelihood, max_sweeps: int = 200
    ) -> None:
        super().__init__(kernel=kernel, mean=mean, likelihood=likelihood)
        check_at_least(1, max_sweeps=max_sweeps)
        self.max_sweeps = max_sweeps

    def gaussian_sites(self, kernel: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """As in ``DenseGP``."""
        require_tilted(self.likelihood)
        mean = self.mean(x).double()
        found = propagate(kernel, mean, self.likelihood, y.double(), max_sweeps=self.max_sweeps)
        return found.weights, found.sites[0]


class VGP(DenseGP):
    """The Gaussian closest to the posterior, in KL(q || p), over the latents at all rows.

    What ``SVGP`` approximates with inducing points: its evidence is a lower bound, and no choice of
    inducing points gives a higher one. For several classes q is a product over the classes.

    Args:
        kernel, mean, likelihood: the likelihood must be log-concave: Bernoulli with either link,
            Ordinal, Softmax (any number of classes), Poisson, NegativeBinomial, Gamma, Laplace.
        max_iterations: most natural gradient steps.

    Cost: five to fifty times n^3 multiply-adds (p n^3 for p classes).
    Source: Opper and Archambeau 2009; Khan and Lin 2017.
    """

    starts_by_laplace = True

    def __init__(
        self, *, kernel: Kernel, mean: Mean, likelihood: Likelihood, max_iterations: int = 200
    ) -> None:
        super().__init__(kernel=kernel, mean=mean, likelihood=likelihood)
        check_at_least(1, max_iterations=max_iterations)
        self.max_iterations = max_iterations

    def gaussian_sites(self, kernel: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """As in ``DenseGP``."""
        require_log_concave(self.likelihood)
        found = fit_gaussian(
            kernel,
            self.mean(x).double(),
            self.likelihood,
            y.double(),
            max_iterations=self.max_iterations,
        )
        weights, information = found.moments.weights, found.sites[0]
        if weights.ndim == 1:
            return weights, information
        return weights.mT.contiguous(), information.mT.contiguous()

    def new_posterior(self) -> SitePosterior:
        """As in ``Model``."""
        return SitePosterior(self.kernel, self.mean, self.likelihood.num_latents, separate=True)


def require_log_concave(likelihood: Likelihood) -> None:
    """Raise ConfigError unless the likelihood is log-concave."""
    if not likelihood.log_concave:
        raise ConfigError(
            f"model=VGP() needs a log-concave likelihood, which {class_name(likelihood)} is not: "
            "the precision of its closest Gaussian can be negative; model=SVGP() takes any "
            "likelihood"
        )


def require_tilted(likelihood: Likelihood) -> None:
    """Raise ConfigError unless the likelihood suits expectation propagation."""
    if likelihood.num_latents != 1:
        raise ConfigError(
            f"expectation propagation is for one latent function, and the "
            f"{class_name(likelihood)} likelihood has {likelihood.num_latents}; take "
            "model=LaplaceGP(), which takes several classes"
        )
    nothing = no_targets(likelihood)
    likelihood.tilted(nothing, nothing, nothing)  # raises if the likelihood does not define it


def no_targets(likelihood: Likelihood) -> Tensor:
    """An empty tensor (0,) where the likelihood's parameters are, to ask what it defines."""
    own = next(likelihood.parameters(), None)
    return torch.zeros(0) if own is None else own.new_zeros(0)


def kernel_matrix(model: DenseModel, x: Tensor, y: Tensor) -> Tensor:
    """K (n, n) in float64; first checks the targets and the memory.

    Raises:
        DataError: targets that the likelihood does not accept.
        ConfigError: n x n arrays do not fit into memory.
    """
    require_targets(model.likelihood, y)
    require_arrays(model, x, model.likelihood.num_latents)
    return prior_matrix(model.kernel, x)


def require_targets(likelihood: Likelihood, y: Tensor) -> None:
    """Raise DataError unless y (n,) is coded as ``likelihood.task`` requires."""
    if likelihood.task == "binary":
        fits, expected = (y == 1.0) | (y == -1.0), "the classes -1 and 1"
    elif is_classification(likelihood.task):
        last = likelihood.num_classes - 1
        fits = (y >= 0.0) & (y <= last) & (y == y.round())
        expected = f"the classes 0, 1, ..., {last}"
    elif likelihood.task == "count":
        fits, expected = (y >= 0.0) & (y == y.round()), "counts 0, 1, 2, ..."
    elif likelihood.task == "positive":
        fits, expected = torch.isfinite(y) & (y > 0.0), "finite numbers above 0"
    else:
        fits, expected = torch.isfinite(y), "finite numbers"
    if not bool(fits.all()):
        bad = (~fits).nonzero()[:, 0]
        raise DataError(
            f"{bad.numel()} of {y.numel()} targets do not suit the {class_name(likelihood)} "
            f"likelihood, the first is {float(y[bad[0]]):g} in row {int(bad[0])}: it takes "
            f"{expected}; recode them, or choose another likelihood"
        )


def num_arrays(num_latents: int) -> int:
    """Number of float64 arrays of n x n that an evaluation with gradient holds."""
    return ARRAYS_PER_EVALUATION + (0 if num_latents == 1 else 3 * num_latents)


def require_arrays(model: object, x: Tensor, num_latents: int) -> None:
    """Raise ConfigError if the n x n arrays of an evaluation do not fit into memory."""
    n = x.shape[0]
    require_memory(
        num_arrays(num_latents) * 8 * n**2,
        x.device,
        f"{class_name(model)} on {n} training points, for its {n} x {n} arrays,",
        "take fewer points, or model=SVGP(), which takes any likelihood in mini-batches",
    )
