"""Sparse spectrum Gaussian processes: few waves, with frequencies learned by the evidence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpx.bases.grid_eigenfunctions.start import require_sums
from gpx.errors import ConfigError
from gpx.kernels import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.required_likelihood import require_gaussian
from gpx.methods.sparse_spectrum.evidence import fit_weights, spectral_evidence
from gpx.methods.sparse_spectrum.posterior import SparseSpectrumPosterior
from gpx.methods.sparse_spectrum.spectrum import LearnedSpectrum, SpectralPoints, UncertainSpectrum


class SpectrumModel(Model):
    """What SSGP and VSSGP share: f(x) = m(x) + phi(x)^T w, w ~ N(0, I), phi learned waves.

    Args:
        spectrum: the waves.
        mean, likelihood: the likelihood is Gaussian.
        draws: how many sets of frequencies are drawn at the start; that of the largest evidence is
            taken.

    Raises:
        ConfigError: another likelihood, or no draw.
    """

    likelihood: Gaussian

    def __init__(
        self, spectrum: LearnedSpectrum, mean: Mean, likelihood: Gaussian, draws: int
    ) -> None:
        super().__init__()
        if draws < 1:
            raise ConfigError(f"draws={draws} of frequencies must be at least 1")
        self.spectrum, self.mean = spectrum, mean
        name = type(self).__name__
        self.likelihood = require_gaussian(likelihood, f"{name} is exact regression on its waves")
        self.draws = draws

    @property
    def kernel(self) -> Kernel:
        """Covariance function whose spectrum is the start; the waves own it."""
        return self.spectrum.kernel

    @property
    def num_inputs(self) -> int | None:
        """Columns of the inputs."""
        return self.spectrum.num_inputs

    def settle(self, x: Tensor) -> dict[str, tuple[object, str]]:
        """As in ``Model``: nothing to settle, but sums of m x m must fit into memory.

        Raises:
            ConfigError: they do not.
        """
        require_sums("num_basis", self.spectrum.num_basis, x.device)
        return {}

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Draw frequencies from the kernel's spectrum, the best of ``draws`` times.

        Cost: that of as many evaluations of the evidence.
        """
        residual, noise = y - self.mean(x), self.likelihood.noise_variance
        values: list[float] = []
        best: dict[str, Tensor] = {}
        for _ in range(self.draws):
            self.spectrum.draw(generator)
            value = float(spectral_evidence(self.spectrum, x, residual, noise)[0])
            if not values or value > max(values):
                best = {name: v.clone() for name, v in self.spectrum.state_dict().items()}
            values.append(value)
        self.spectrum.load_state_dict(best)
        self.note = (
            f"frequencies of draw {values.index(max(values)) + 1} of {self.draws}: evidence/point "
            f"{max(values) / len(x):+.4f} (worst {min(values) / len(x):+.4f})"
        )

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> SparseSpectrumPosterior:
        """The posterior of the weights given x (n, d), y (n,).

        Cost: n m^2 / 2 + m^3 / 3 multiply-adds, memory O(m^2 + block).
        """
        noise = self.likelihood.noise_variance
        fitted, _ = fit_weights(self.spectrum, x, y - self.mean(x), noise)
        posterior = self.new_posterior()
        posterior.fill(fitted)
        return posterior

    def new_posterior(self) -> SparseSpectrumPosterior:
        """As in ``Model``; the training data are not part of the posterior."""
        return SparseSpectrumPosterior(self.spectrum, self.mean)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: q of the frequencies, where there is one; ``hyperparameters``: rest."""
        variational = self.spectrum.distribution()
        held = {id(p) for p in variational}
        rest = [p for p in self.parameters() if id(p) not in held]
        groups = {"variational": variational} if variational else {}
        return groups | {"hyperparameters": rest}


class SSGP(SpectrumModel):
    """Sparse spectrum Gaussian process: m / 2 frequencies, learned with the hyperparameters.

    phi(x) = sqrt(2 outputscale / m) (cos(w_r . x), sin(w_r . x)): a stationary kernel with as many
    lines in its spectrum, fitted by its own evidence. It over-fits as frequencies grow in number:
    compare train.mnlp with test.mnlp.

    Args:
        kernel: RBF or Matern: where frequencies start; its lengthscales and its outputscale are
            learned with them.
        mean, likelihood: the likelihood is Gaussian.
        num_inputs: d.
        num_basis: m, even.
        draws: sets of frequencies that are drawn at the start, of which the best is taken.

    Raises:
        ConfigError: another kernel, or options out of range.

    Cost: n m^2 multiply-adds a step, O(n m d) for the waves.
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
    ) -> None:
        super().__init__(SpectralPoints(kernel, num_basis, num_inputs), mean, likelihood, draws)


class VSSGP(SpectrumModel):
    """Variational sparse spectrum Gaussian process: a Gaussian over each of m frequencies.

    Frequencies that the data do not tell stay uncertain, which keeps them from over-fitting; what
    is maximised is a lower bound on the log evidence of the RBF kernel's m random waves at the
    phases found. Waves fade away from the origin of the inputs: standardise them.

    Args:
        kernel: RBF.
        mean, likelihood: the likelihood is Gaussian.
        num_inputs: d.
        num_basis: m.
        draws: as for ``SSGP``.
        std: of every frequency at the start, relative to the prior's.

    Raises:
        ConfigError: another kernel, or options out of range.

    Cost: n m^2 multiply-adds a step, O(n m d) for the waves.
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
    ) -> None:
        spectrum = UncertainSpectrum(kernel, num_basis, num_inputs, std)
        super().__init__(spectrum, mean, likelihood, draws)
