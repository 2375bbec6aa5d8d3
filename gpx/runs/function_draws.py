"""Draws of functions from a posterior, and of targets given these functions."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from gpx.calibration import Recalibration
from gpx.errors import ConfigError, NoSpectrum, NotAvailable
from gpx.likelihoods import Likelihood
from gpx.models import Posterior
from gpx.sampling.prior import GIVEN_ROWS
from gpx.sampling.seeds import derive_seed, global_randomness, stream
from gpx.tensor_checks import own_number
from gpx.warned_line import users_line

MAX_JOINT_ROWS = 5000
"""Most rows at which draws are joint unless asked for: half a minute on one core."""


@torch.no_grad()
def drawn_functions(
    posterior: Posterior, x: Tensor, num: int, *, seed: int, jointly: bool | None = None
) -> Tensor:
    """Draw ``num`` functions at x (n, d): (num, n), or (num, n, p) for p latent functions.

    Args:
        seed: determines the functions at every x, unless ``jointly``.
        jointly: draw from the joint normal distribution at x; see ``Posterior.sample``. None: if
            the kernel has no features to draw functions from, at up to ``MAX_JOINT_ROWS`` rows.

    Raises:
        ConfigError: an invalid ``num`` or ``seed``, or a kernel without features to draw functions
            from where draws are not joint (``NoSpectrum``).
        NotAvailable: ``jointly``, and the posterior has no joint distribution in closed form.
    """
    if num < 1 or not 0 <= seed < 2**63:
        raise ConfigError(
            f"num={num} must be at least 1, and seed={seed} a whole number of at least 0"
        )

    def drawn_jointly() -> Tensor:
        return posterior.sample(x, num, generator=stream(seed, "sampled functions", x.device))

    if jointly:
        return drawn_jointly()
    try:
        return posterior.sample_paths(num, generator=stream(seed, "sampled functions", x.device))(x)
    except NoSpectrum as error:
        if jointly is not None or len(x) > MAX_JOINT_ROWS:
            raise
        try:
            found = drawn_jointly()
        except NotAvailable:
            text = str(error).partition(GIVEN_ROWS)[0]
            raise NoSpectrum(f"{text}; draws at given rows are not available either") from None
        warnings.warn(
            "the kernel has no random features, so these draws are joint draws at the given rows: "
            "the same seed gives other functions at other rows (jointly=True does so without this "
            "warning)",
            stacklevel=users_line(),
        )
        return found


def require_known_targets(
    posterior: Posterior, likelihood: Likelihood, calibration: Recalibration | None
) -> None:
    """Raise NotAvailable if the distribution of targets given a function is not known."""
    unknown = posterior.has_own_noise and likelihood.task == "regression"
    if unknown and noise_of_functions(posterior, 1, seed=0) is None:
        why = "the noise is uncertain or differs between experts"
    elif calibration is not None:
        why = "recalibration"
    else:
        return
    raise NotAvailable(
        f"targets cannot be drawn given a function here ({why}); draw functions with "
        "targets=False, or use predict for the distribution of each target"
    )


def noise_of_functions(posterior: Posterior, num: int, *, seed: int) -> Tensor | None:
    """Noise variances (num,) of the functions of ``drawn_functions``; None: the likelihood's."""
    generator = stream(seed, "sampled functions", own_number(posterior).device)
    return posterior.noise_of_draws(num, generator=generator)


@torch.no_grad()
def drawn_targets(
    likelihood: Likelihood, f: Tensor, *, seed: int, noise: Tensor | None = None
) -> Tensor:
    """Draw a target given every value of the functions f (num, n, ...); float64 on the CPU.

    Args:
        noise (num,): variances of normal noise, one for each function of f (num, n); None: the
            likelihood's noise.
    """
    if noise is not None:
        with global_randomness(derive_seed(seed, "sampled noise")):
            draws = torch.randn(f.shape, dtype=torch.float64)
        return f.double().cpu() + noise.double().cpu().sqrt().unsqueeze(1) * draws
    rows = f.reshape(f.shape[0] * f.shape[1], *f.shape[2:])
    with global_randomness(derive_seed(seed, "sampled noise")):
        y = likelihood.predictive(rows, torch.zeros_like(rows)).sample()
    return y.reshape(*f.shape[:2], *y.shape[1:]).double().cpu()
