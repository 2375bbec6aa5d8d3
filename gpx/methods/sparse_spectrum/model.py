"""Sparse spectrum Gaussian processes: trigonometric features with learned frequencies."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpx.bases.grid_eigenfunctions.start import require_sums
from gpx.inference.nystrom import NystromSums
from gpx.inference.variational import raise_noise
from gpx.kernels import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.required_likelihood import require_gaussian
from gpx.methods.sparse_spectrum.evidence import fit_spectrum, spectral_sums
from gpx.methods.sparse_spectrum.posterior import SparseSpectrumPosterior
from gpx.methods.sparse_spectrum.spectrum import LearnedSpectrum, SpectralPoints, UncertainSpectrum
from gpx.tensor_checks import check_at_least


class SpectrumModel(Model):
    """Base class of SSGP and VSSGP: f(x) = m(x) + phi(x)^T w, w ~ N(0, I), learned phi.

    Args:
        spectrum: the features phi.
        mean, likelihood: the likelihood is Gaussian.
        draws: number of random sets of initial frequencies, of which that with the largest evidence
            is taken.
        fit_noise: whether ``initialise`` raises the noise variance to the maximum of the evidence
            of the waves: an exact GP explains more, and its noise variance may be far too small.

    Raises:
        ConfigError: another likelihood, or draws < 1.
    """

    fixed_shapes = True
    likelihood: Gaussian

    def __init__(
        self,
        spectrum: LearnedSpectrum,
        mean: Mean,
        likelihood: Gaussian,
        draws: int,
        fit_noise: bool = True,
    ) -> None:
        super().__init__()
        check_at_least(1, draws=draws)
        self.spectrum, self.mean = spectrum, mean
        name = type(self).__name__
        self.likelihood = require_gaussian(likelihood, f"{name} is exact regression on its waves")
        self.draws, self.fit_noise = draws, fit_noise

    @property
    def kernel(self) -> Kernel:
        """Covariance function that gives the initial frequencies; owned by the spectrum."""
        return self.spectrum.kernel

    @property
    def num_inputs(self) -> int | None:
        """Columns of the inputs."""
        return self.spectrum.num_inputs

    def settle(self, x: Tensor) -> dict[str, tuple[object, str]]:
        """As in ``Model``: no choices, but checks memory.

        Raises:
            ConfigError: sums of m x m do not fit into memory.
        """
        require_sums("num_basis", self.spectrum.num_basis, x.device)
        return {}

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Draw frequencies from the kernel's spectral density; keep the best of ``draws`` sets.

        Every set is judged at the noise variance that suits it; see ``fit_noise``.

        Cost: that of ``draws`` evaluations of the evidence and eigendecompositions of m x m.
        """
        residual, noise = y - self.mean(x), self.likelihood.noise_variance.clone()
        values: list[float] = []
        best: dict[str, Tensor] = {}
        for _ in range(self.draws):
            self.spectrum.draw(generator)
            sums = spectral_sums(self.spectrum, x, residual)
            if self.fit_noise:
                self.likelihood.noise_variance = noise
                raise_noise(NystromSums.of_features(sums), len(x), self.likelihood)
            noise_now = self.likelihood.noise_variance
            terms = fit_spectrum(sums, noise_now)[1]
            value = float(terms.total() - self.spectrum.penalty().double())
            if not values or value > max(values):
                best = {name: v.clone() for name, v in self.state_dict().items()}
            values.append(value)
        self.load_state_dict(best)
        self.note = (
            f"frequencies of draw {values.index(max(values)) + 1} of {self.draws}: evidence/point "
            f"{max(values) / len(x):+.4f} (worst {min(values) / len(x):+.4f})"
        )

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> SparseSpectrumPosterior:
        """The posterior of the weights given x (n, d), y (n,).

        Cost: n m^2 / 2 + m^3 / 3 multiply-adds, memory O(m^2 + block).
        """
        sums = spectral_sums(self.spectrum, x, y - self.mean(x))
        posterior = self.new_posterior()
        posterior.fill(fit_spectrum(sums, self.likelihood.noise_variance)[0])
        return posterior

    def new_posterior(self) -> SparseSpectrumPosterior:
        """As in ``Model``."""
        return SparseSpectrumPosterior(self.spectrum, self.mean)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: q of the frequencies, if there is one; ``hyperparameters``: the rest."""
        variational = self.spectrum.distribution()
        held = {id(p) for p in variational}
        rest = [p for p in self.parameters() if id(p) not in held]
        groups = {"variational": variational} if variational else {}
        return groups | {"hyperparameters": rest}


class SSGP(SpectrumModel):
    """Sparse spectrum Gaussian process: m / 2 frequencies, learned with the hyperparameters.

    phi(x) = sqrt(2 outputscale / m) (cos(w_r . x), sin(w_r . x)): a stationary kernel with m / 2
    discrete frequencies. With many frequencies it over-fits: compare train.mnlp with test.mnlp.

    Args:
        kernel: RBF or Matern: gives the initial frequencies; its lengthscales and outputscale are
            learned as well.
        mean, likelihood: the likelihood is Gaussian.
        num_inputs: d.
        num_basis: m, even.
        draws, fit_noise: as for ``SpectrumModel``.

    Raises:
        ConfigError: another kernel, or options out of range.

    Cost per step: n m^2 multiply-adds, and O(n m d) for the features.
    Source: Lazaro-Gredilla, Quinonero-Candela, Rasmussen and Figueiras-Vidal, JMLR 2010.
    """

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        num_inputs: int,
        num_basis: int = 200,
        draws: int = 10,
        fit_noise: bool = True,
    ) -> None:
        spectrum = SpectralPoints(kernel, num_basis, num_inputs)
        super().__init__(spectrum, mean, likelihood, draws, fit_noise)


class VSSGP(SpectrumModel):
    """Variational sparse spectrum Gaussian process: a Gaussian over each of m frequencies.

    Frequencies that the data do not determine stay uncertain, which reduces over-fitting. Training
    maximises a lower bound on the log evidence of m random Fourier features of the RBF kernel, at
    learned phases. Expected features decay away from the origin, so inputs must be standardised.

    Args:
        kernel: RBF.
        mean, likelihood: the likelihood is Gaussian.
        num_inputs: d.
        num_basis: m.
        draws, fit_noise: as for ``SpectrumModel``.
        std: initial standard deviation of frequencies, relative to that of the prior.

    Raises:
        ConfigError: another kernel, or options out of range.

    Cost per step: n m^2 multiply-adds, and O(n m d) for the features.
    Source: Gal and Turner, ICML 2015.
    """

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        num_inputs: int,
        num_basis: int = 200,
        draws: int = 10,
        std: float = 0.1,
        fit_noise: bool = True,
    ) -> None:
        spectrum = UncertainSpectrum(kernel, num_basis, num_inputs, std)
        super().__init__(spectrum, mean, likelihood, draws, fit_noise)
