"""Conversion of a trained model of discrete weights into a predictor with 4-bit weights."""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpx.bases.closed_forms import AxisProducts, ClosedForm, Radial, Waves
from gpx.errors import ConfigError, class_name
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Constant, Zero
from gpx.methods.direct.codes import QuantisedWeights, quantise_draws
from gpx.methods.direct.network_posterior import DirectNetworkPosterior
from gpx.methods.direct.posterior import DirectPosterior
from gpx.runs.exporting.int4.axes import AxisFeatures, peaks_of
from gpx.runs.exporting.int4.forms import FULL, Features, Form
from gpx.runs.exporting.int4.given import GivenFeatures
from gpx.runs.exporting.int4.predictor import Int4Predictor
from gpx.runs.exporting.int4.radial import RadialFeatures, height
from gpx.runs.exporting.int4.squares import SquareNetwork
from gpx.runs.exporting.int4.waves import WaveFeatures
from gpx.runs.exporting.torch_program import require_plain
from gpx.runs.predictor import Predictor
from gpx.tensor_checks import check_at_least


def int4_predictor(predictor: Predictor, *, samples: int = 16, seed: int = 0) -> Int4Predictor:
    """Draw the weights of a trained model and store them as 4-bit integers.

    Args:
        predictor: of ``approx=direct``, ``direct_mixture``, ``direct_logistic`` or
            ``direct_network``.
        samples: number of draws; the error of the mean is the deviation / sqrt(samples).
        seed: of the draws, which are made on the CPU wherever the model is.

    Raises:
        ConfigError: another model or mean function, a target transform, recalibration, columns that
            are not numbers, or weights that 4 bits cannot hold.
    """
    posterior = predictor.posterior
    if not isinstance(posterior, DirectPosterior | DirectNetworkPosterior):
        raise ConfigError(
            "format=int4 needs discrete weights, and the posterior of this run is "
            f"{class_name(posterior)}; train with approx=direct"
        )
    require_plain(predictor, "int4")
    if predictor.calibration is not None:
        raise ConfigError("format=int4 cannot hold calibrate=: train without it")
    check_at_least(1, samples=samples)
    posterior = copy.deepcopy(posterior).cpu()  # the generator of a GPU would give other draws
    drawn = posterior.sample_codes(samples, generator=torch.Generator().manual_seed(seed))
    if isinstance(posterior, DirectNetworkPosterior):
        return _network(predictor, posterior, drawn)
    return _functions(predictor, posterior, drawn)


def _functions(predictor: Predictor, posterior: DirectPosterior, drawn: Tensor) -> Int4Predictor:
    """Predictor of a model with basis functions, from codes of its weights (S, m)."""
    scaler = predictor.scaler
    basis, mean = posterior.basis, posterior.mean
    if not isinstance(mean, Constant | Zero):
        raise ConfigError(f"format=int4 takes mean=constant or zero, got {class_name(mean)}")
    inputs, classes = len(predictor.input_names), isinstance(predictor.likelihood, Bernoulli)
    weights = quantise_draws(drawn, posterior.values)
    used = (drawn != weights.zero).any(0).nonzero().flatten()
    # draws of classes are logits, which have no units
    unit = 1.0 if classes else float(scaler.target_scale)
    level = unit * float(mean(torch.zeros(1, inputs, dtype=posterior.scale.dtype)))
    found = basis.closed_form(inputs)
    per_step = unit * weights.step * posterior.scale
    rate = scaler.input_scale.reciprocal().cpu()
    middle = scaler.input_mean.cpu()
    count = basis.num_basis
    if found is None:
        form: Form = GivenFeatures(per_step[used].float().numpy(), used.int().numpy())
        numbers = 0
    else:
        if isinstance(found, Radial):  # divide by lengthscales along with standardising
            rate = rate * found.rate
        form = _in_integers(found, per_step, used)
        numbers = _float_numbers(found, count, inputs)
    made = Int4Predictor(
        codes=drawn[:, used].numpy(),
        zero=weights.zero,
        form=form,
        input_mean=middle.float().numpy(),
        input_rate=rate.float().numpy(),
        offset=np.float32(level if classes else float(scaler.target_mean) + level),
        noise=np.float32(0.0 if classes else _noise(predictor, posterior)),
        classes=classes,
        num_basis=count,
        float_numbers=numbers,
        mean_numbers=count,
    )
    if isinstance(form, Features):
        # raises now if a sum could overflow 32 bits in a prediction
        made.weights.products(torch.full((1, len(used)), FULL))
    return made


def _in_integers(found: ClosedForm, per_step: Tensor, used: Tensor) -> Features:
    """Tables of the functions ``used``; ``per_step[j]`` is the value of a step of weight j."""
    amplitude = found.amplitude[used].abs()
    worth = amplitude * per_step[used]
    peaks = torch.ones(1, 1)
    if isinstance(found, AxisProducts):
        found = found._replace(which=found.which[used], amplitude=amplitude)
        peaks = peaks_of(found)
        worth = worth * peaks.mT.gather(0, found.which).prod(1)
    elif isinstance(found, Radial):
        found = found._replace(centres=found.centres[used], amplitude=amplitude)
        worth = worth * height(found)
    else:
        found = Waves(found.turns[used], found.start[used], amplitude)
    largest = worth.max() if len(worth) else worth.new_ones(())
    scale = (largest / FULL).float().reshape(1).numpy()
    alike = torch.allclose(worth, largest, rtol=1e-6, atol=0.0)
    relative = worth[:0] if alike else FULL * worth / largest
    factor: NDArray[np.int16] = relative.round().short().numpy()
    if isinstance(found, AxisProducts):
        return AxisFeatures.of(found, peaks, scale, factor)
    if isinstance(found, Radial):
        return RadialFeatures.of(found, scale, factor)
    return WaveFeatures.of(found, scale, factor)


def _float_numbers(found: ClosedForm, count: int, inputs: int) -> int:
    """Number of float32 numbers that define all functions in a floating-point model."""
    if isinstance(found, Waves):  # a cosine and a sine share a frequency
        return 1 + count // 2 * inputs
    if isinstance(found, Radial):
        return 1 + count * inputs
    widths = found.functions(found.low.unsqueeze(0)).shape[1]
    return 1 + inputs * widths + count * inputs


def _noise(predictor: Predictor, posterior: DirectPosterior | DirectNetworkPosterior) -> float:
    """Noise variance in the squared unit of the target."""
    assert isinstance(predictor.likelihood, Gaussian)
    scale = float(predictor.scaler.target_scale)
    return scale * scale * float(posterior.noise_variance(predictor.likelihood))


def _network(
    predictor: Predictor, posterior: DirectNetworkPosterior, drawn: Tensor
) -> Int4Predictor:
    """Predictor of a network, from codes of its weights (S, m)."""
    fan_in = posterior.polynomial.fan_in.double()
    weights: QuantisedWeights = quantise_draws(drawn, posterior.values[0] * fan_in[0].sqrt())
    scaler, inputs = predictor.scaler, len(predictor.input_names)
    widths = (*posterior.hidden, 1)
    into = torch.tensor([inputs + posterior.bias, *posterior.hidden]).double()
    form = SquareNetwork(
        np.array([float(scaler.target_scale)], dtype=np.float32),
        np.array(widths, dtype=np.uint16),
        (weights.step / into.sqrt()).float().numpy(),
        np.array([inputs, int(posterior.bias)], dtype=np.int32),
    )
    return Int4Predictor(
        codes=drawn.numpy(),
        zero=weights.zero,
        form=form,
        input_mean=scaler.input_mean.float().cpu().numpy(),
        input_rate=scaler.input_scale.reciprocal().float().cpu().numpy(),
        offset=np.float32(float(scaler.target_mean)),
        noise=np.float32(_noise(predictor, posterior)),
        classes=False,
        num_basis=drawn.shape[1],
        float_numbers=len(widths) + 1,
        mean_numbers=len(posterior.expected),
    )
