"""A trained model of discrete weights as a predictor in integers, for machines of few bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gpx.atomic_file import atomic_file
from gpx.bases import RandomFourier
from gpx.errors import ConfigError, ShapeError, class_name
from gpx.likelihoods import Gaussian
from gpx.means import Constant, Zero
from gpx.methods.direct.codes import QuantisedWeights, quantised, unpack_codes
from gpx.methods.direct.posterior import DirectPosterior
from gpx.training.c_source import c_source
from gpx.training.fit import Fitted
from gpx.training.predictor import Predictor, load

WAVE = 256
"""Entries of the table of one period of the cosine."""

FULL = 32767
"""The integer that stands for a cosine of one."""


class Int4Size(NamedTuple):
    """What a prediction takes, in integers and in the floating-point model of the same draws.

    Attributes:
        weight_bytes, float_weight_bytes: of all draws: 4 bits a weight, and float32.
        total_bytes: all tables of the predictor, frequencies included.
        float_total_bytes: frequencies and weights of all functions in float32.
        multiply_adds, float_multiply_adds: of weights and features, one input, all draws: integer
            ones for the weights that are not zero, and floating-point ones for all.
        functions, num_basis: functions that some draw uses, and all.
        mean_bytes, mean_multiply_adds: of the posterior mean alone in float32, which knows no
            variance: with many draws it is the smaller and the cheaper model.
    """

    weight_bytes: int
    float_weight_bytes: int
    total_bytes: int
    float_total_bytes: int
    multiply_adds: int
    float_multiply_adds: int
    functions: int
    num_basis: int
    mean_bytes: int
    mean_multiply_adds: int


class Int4Prediction(NamedTuple):
    """Mean and variance (n,) of y over the draws, noise included, in the data's own units."""

    mean: NDArray[np.float32]
    variance: NDArray[np.float32]


class Int4Predictor:
    """S draws of the weights in 4 bits, and cosines in 16: sums of 32-bit integers.

    f_s(x) = offset + scale * sum_j code_sj cosine_j(x); cosines come from a table, their phases
    from float32 sums over the inputs. What no draw uses is left out. ``c_source`` writes the same
    arithmetic, step by step, as a C function; both give the same bits but for the rounding of the
    last floating-point sums over draws.

    Args:
        codes (S, k): of the draws, 4 bits each.
        zero: the code of zero.
        turns (k, d): frequencies in turns per standardised input, float32.
        start (k,): phase at the origin in turns: 0 for a cosine, 3/4 for a sine.
        input_mean, input_rate (d,): standardised input = (x - mean) * rate, float32.
        offset, scale, noise: float32 numbers in the data's own units (noise: squared).
        num_basis: functions of the model that it is of.
    """

    def __init__(
        self,
        *,
        codes: NDArray[np.uint8],
        zero: int,
        turns: NDArray[np.float32],
        start: NDArray[np.float32],
        input_mean: NDArray[np.float32],
        input_rate: NDArray[np.float32],
        offset: np.float32,
        scale: np.float32,
        noise: np.float32,
        num_basis: int,
    ) -> None:
        self.codes, self.zero = codes, zero
        self.turns, self.start = turns, start
        self.input_mean, self.input_rate = input_mean, input_rate
        self.offset, self.scale, self.noise = offset, scale, noise
        self.num_basis = num_basis

    @property
    def weights(self) -> QuantisedWeights:
        """The draws, with sums in integers."""
        return quantised(torch.from_numpy(self.codes), torch.arange(16.0) - self.zero)

    def features(self, inputs: NDArray[np.float32]) -> NDArray[np.int32]:
        """Cosines (n, k) at inputs (n, d) in the data's own units, as integers up to 32767."""
        standard = (inputs - self.input_mean) * self.input_rate
        turned = np.broadcast_to(self.start, (len(inputs), len(self.start))).copy()
        for column in range(self.turns.shape[1]):  # in the order of the C function
            turned += standard[:, column : column + 1] * self.turns[:, column]
        turned -= np.trunc(turned)
        phase = np.trunc(turned * np.float32(65536.0)).astype(np.int64) & 65535
        place, part = phase >> 8, phase & 255
        table = wave().astype(np.int64)
        blend = table[place] * (256 - part) + table[place + 1] * part
        return np.trunc(blend / 256.0).astype(np.int32)

    def predict(self, inputs: ArrayLike) -> Int4Prediction:
        """Mean and variance of y at inputs (n, d), which are read as float32.

        Raises:
            ShapeError: another number of columns.
        """
        x = np.atleast_2d(np.asarray(inputs, dtype=np.float32))
        if x.ndim != 2 or x.shape[1] != len(self.input_mean):
            raise ShapeError(
                f"expected inputs with {len(self.input_mean)} columns, got shape {x.shape}"
            )
        sums = self.weights.products(torch.from_numpy(self.features(x))).numpy()
        draws = self.offset + self.scale * sums.astype(np.float32)
        mean = draws.mean(1, dtype=np.float32)
        variance = np.square(draws - mean[:, None]).mean(1, dtype=np.float32)
        return Int4Prediction(mean, variance + self.noise)

    def size(self) -> Int4Size:
        """Bytes and multiply-adds, beside those of floating point."""
        num, kept = self.codes.shape
        inputs = self.turns.shape[1]
        weight_bytes = num * ((kept + 1) // 2)
        tables = 4 * kept * inputs + kept + 2 * (WAVE + 1) + 4 * (2 * inputs + 3)
        waves = self.num_basis // 2 * inputs + 2 * inputs + 3
        return Int4Size(
            weight_bytes,
            4 * num * self.num_basis,
            weight_bytes + tables,
            4 * (num * self.num_basis + waves),
            self.weights.multiply_adds,
            num * self.num_basis,
            kept,
            self.num_basis,
            4 * (self.num_basis + waves),
            self.num_basis,
        )

    def save(self, path: str | Path) -> None:
        """Write everything to a NumPy archive; 4 bits a weight."""
        packed = self.weights.packed.numpy()
        kept = {name: value for name, value in vars(self).items() if name != "codes"}
        with atomic_file(Path(path)) as file:
            np.savez(file, packed=packed, **kept)

    @classmethod
    def load(cls, path: str | Path) -> Int4Predictor:
        """Read what ``save`` wrote; nothing in the file is executed."""
        with np.load(path, allow_pickle=False) as file:
            kept = {name: file[name] for name in file.files}
        packed = torch.from_numpy(kept["packed"])
        return cls(
            codes=unpack_codes(packed, len(kept["start"])).numpy(),
            zero=int(kept["zero"]),
            turns=kept["turns"],
            start=kept["start"],
            input_mean=kept["input_mean"],
            input_rate=kept["input_rate"],
            offset=np.float32(kept["offset"]),
            scale=np.float32(kept["scale"]),
            noise=np.float32(kept["noise"]),
            num_basis=int(kept["num_basis"]),
        )

    def c_source(self) -> str:
        """The predictor as C: tables and ``gpx_predict``, which needs no library."""
        return c_source(
            packed=self.weights.packed.numpy(),
            zero=self.zero,
            turns=self.turns,
            sine=self.start > 0.0,
            wave=wave(),
            input_mean=self.input_mean,
            input_rate=self.input_rate,
            constants={"OFFSET": self.offset, "SCALE": self.scale, "NOISE": self.noise},
        )


def wave() -> NDArray[np.int16]:
    """One period of the cosine and its first entry again (257,), as integers up to 32767."""
    angle = 2.0 * math.pi * np.arange(WAVE + 1) / WAVE
    return np.rint(FULL * np.cos(angle)).astype(np.int16)


def int4_predictor(predictor: Predictor, *, samples: int = 16, seed: int = 0) -> Int4Predictor:
    """Draw the weights of a trained model and keep them as 4-bit integers.

    Args:
        predictor: of ``approx=direct`` over random Fourier features.
        samples: draws; their mean differs from the posterior's by its deviation / sqrt(samples).
        seed: of the draws.

    Raises:
        ConfigError: another model, basis or mean, a basis with weights of several prior variances,
            or values that 4 bits do not hold.
    """
    if predictor.target_transform is not None:
        raise ConfigError("format=int4 knows no data.target_transform=: train without it")
    posterior = predictor.posterior
    if not isinstance(posterior, DirectPosterior):
        raise ConfigError(
            f"format=int4 needs discrete weights, and the run has a {class_name(posterior)}; train "
            "with approx=direct"
        )
    if not isinstance(predictor.likelihood, Gaussian):
        raise ConfigError(
            "format=int4 writes regression with Gaussian noise, and the likelihood is "
            f"{class_name(predictor.likelihood)}; its draws are posterior.sample_codes"
        )
    if samples < 1:
        raise ConfigError(f"samples={samples}: expected at least 1")
    basis, mean = posterior.basis, posterior.mean
    if not isinstance(basis, RandomFourier):
        raise ConfigError(
            f"format=int4 writes cosines and sines, and the basis is {class_name(basis)}; train "
            "with basis=random_fourier"
        )
    if not isinstance(mean, Constant | Zero):
        raise ConfigError(f"format=int4 takes mean=constant or zero, got {class_name(mean)}")
    deviation = posterior.scale[0]
    if not torch.equal(posterior.scale, deviation.expand_as(posterior.scale)):
        raise ConfigError("format=int4 needs weights of one prior variance; train with spread=1")
    generator = torch.Generator(device=posterior.scale.device).manual_seed(seed)
    drawn = posterior.sample_codes(samples, generator=generator).cpu()
    weights = quantised(drawn, posterior.values.cpu())
    used = (drawn != weights.zero).any(0).nonzero().flatten()
    scaler = predictor.scaler
    inputs = len(predictor.input_names)
    within = used % basis.block_size
    frequencies = basis.frequencies(
        used // basis.block_size * basis.per_block + within % basis.per_block,
        inputs,
        torch.float64,
    )
    unit = float(scaler.target_scale)
    height = float(basis.scale(torch.float64) * deviation) * weights.step / FULL
    level = float(mean(torch.zeros(1, inputs, dtype=posterior.scale.dtype)))
    noise = float(posterior.noise_variance(predictor.likelihood))
    sine = within >= basis.per_block
    found = Int4Predictor(
        codes=drawn[:, used].numpy(),
        zero=weights.zero,
        turns=(frequencies / (2.0 * math.pi)).detach().float().numpy(),
        start=(0.75 * sine).float().numpy(),
        input_mean=scaler.input_mean.float().cpu().numpy(),
        input_rate=scaler.input_scale.reciprocal().float().cpu().numpy(),
        offset=np.float32(float(scaler.target_mean) + unit * level),
        scale=np.float32(unit * height),
        noise=np.float32(unit * unit * noise),
        num_basis=basis.num_basis,
    )
    # a sum that could leave 32 bits is refused now, not where the predictor runs
    found.weights.products(torch.full((1, len(used)), FULL))
    return found


def export(
    model: str | Path | Predictor | Fitted,
    output: str | Path,
    *,
    samples: int = 16,
    seed: int = 0,
    trust: Sequence[str] | str = (),
) -> Int4Predictor:
    """Write a trained model of discrete weights as C and as a NumPy archive beside it.

    ``output`` holds tables and ``void gpx_predict(const float *x, float *mean, float *variance)``
    in plain C99 that includes and links nothing; the archive of the same name and the ending
    ``.npz`` is read by ``Int4Predictor.load``, whose predictions the function reproduces::

        predictor = gpx.export("outputs/...", "model.c", samples=16)
        predictor.size(), predictor.predict(inputs)

    Args:
        model: a run folder, or what ``gpx.load`` or ``gpx.fit`` gave.
        output: path of the C file.
        samples, seed: as for ``int4_predictor``.
        trust: as for ``gpx.load``.

    Raises:
        ConfigError: ``output`` does not end in .c, or as for ``int4_predictor``.
        CheckpointError: as for ``gpx.load``.
    """
    path = Path(output).expanduser()
    if path.suffix != ".c":
        raise ConfigError(f"output={output}: format=int4 writes C, name it with the ending .c")
    if isinstance(model, Fitted):
        model = model.model
    found = int4_predictor(
        model if isinstance(model, Predictor) else load(model, trust=trust),
        samples=samples,
        seed=seed,
    )
    found.save(path.with_suffix(".npz"))
    with atomic_file(path) as file:
        file.write(found.c_source().encode())
    return found
