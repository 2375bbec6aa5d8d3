"""A predictor with 4-bit draws of discrete weights, and its C source."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gpx.atomic_file import atomic_file
from gpx.errors import ConfigError, ShapeError
from gpx.methods.direct.codes import QuantisedWeights, quantise_draws, unpack_codes
from gpx.runs.exporting.int4.axes import AxisFeatures
from gpx.runs.exporting.int4.c_source import HEAD, array, ending, signature
from gpx.runs.exporting.int4.forms import Form
from gpx.runs.exporting.int4.given import GivenFeatures
from gpx.runs.exporting.int4.radial import RadialFeatures
from gpx.runs.exporting.int4.squares import SquareNetwork
from gpx.runs.exporting.int4.waves import WaveFeatures

FORMS: dict[str, type[Form]] = {
    kind.__name__: kind
    for kind in (WaveFeatures, AxisFeatures, RadialFeatures, GivenFeatures, SquareNetwork)
}

LINK_ENTRIES_PER_UNIT = 16
"""Entries per unit in the table of the logistic function, for an error of 5e-5."""

LINK_RANGE = 16
"""End of that table, where the logistic function is 1 to within 1e-7."""


class Int4Size(NamedTuple):
    """Size and cost of a prediction, in integers and in a floating-point model of the same draws.

    Attributes:
        weight_bytes, float_weight_bytes: weights of all draws, in 4 bits and in float32.
        total_bytes: all tables of the predictor, including those of the functions.
        float_total_bytes: weights and functions of the model in float32.
        multiply_adds, float_multiply_adds: for one input and all draws, with weights that are not
            zero, and with all weights.
        functions, num_basis: number of functions with a weight that is not zero, and of all; for a
            network, of weights.
        mean_bytes, mean_multiply_adds: of the posterior mean in float32, without a variance. With
            many draws it is smaller and cheaper.
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
    """Mean and variance (n,) of y over the draws, noise included, in the data's own units.

    For two classes y is 1 for the second label and 0 for the first: the mean is a probability.
    """

    mean: NDArray[np.float32]
    variance: NDArray[np.float32]


class Int4Predictor:
    """S draws of weights in 4 bits and basis functions in 16 bits, summed in 32-bit integers.

    f_s(x) = offset + scale * sum_j code_sj phi_j(x). Basis functions come from tables: cosines,
    products of functions of one input, or functions of the distance to a centre. Values of other
    basis functions are given by the caller (``predict_features``). Networks of squares use float32
    sums. Functions whose weights are all zero are left out. ``c_source`` writes the same arithmetic
    as a C function; results agree bit for bit except in the final float32 sums over draws.

    Args:
        codes (S, k): of the draws, 4 bits each.
        zero: the code of zero.
        form: evaluates draws of the function from inputs and weights.
        input_mean, input_rate (d,): standardised input = (x - mean) * rate, float32.
        offset, noise: mean offset and noise variance in the data's own units, float32.
        classes: whether the logistic function is applied to the draws.
        num_basis: number of basis functions of the trained model.
        float_numbers: number of float32 numbers that define these functions.
        mean_numbers: number of weights of the posterior mean.
    """

    def __init__(
        self,
        *,
        codes: NDArray[np.uint8],
        zero: int,
        form: Form,
        input_mean: NDArray[np.float32],
        input_rate: NDArray[np.float32],
        offset: np.float32,
        noise: np.float32,
        classes: bool,
        num_basis: int,
        float_numbers: int,
        mean_numbers: int,
    ) -> None:
        self.codes, self.zero, self.form = codes, zero, form
        self.input_mean, self.input_rate = input_mean, input_rate
        self.offset, self.noise, self.classes = offset, noise, classes
        self.num_basis, self.float_numbers = num_basis, float_numbers
        self.mean_numbers = mean_numbers

    @property
    def weights(self) -> QuantisedWeights:
        """The drawn weights."""
        return quantise_draws(torch.from_numpy(self.codes), torch.arange(16.0) - self.zero)

    def predict(self, inputs: ArrayLike) -> Int4Prediction:
        """Mean and variance of y at inputs (n, d), which are read as float32.

        Raises:
            ShapeError: another number of columns.
            ConfigError: the predictor needs values of basis functions.
        """
        if self.form.given:
            raise ConfigError(
                "the predictor has no tables of its basis functions: call predict_features with "
                "their values"
            )
        x = _columns(inputs, len(self.input_mean), "inputs")
        return self._outcome((x - self.input_mean) * self.input_rate)

    def predict_features(self, features: ArrayLike) -> Int4Prediction:
        """Mean and variance of y at values (n, k) of the functions ``form.columns`` of the basis.

        In gpx they are ``posterior.basis(x)[:, columns]`` at standardised inputs x.

        Raises:
            ShapeError: another number of columns.
            ConfigError: the predictor has tables of its basis functions.
        """
        if not self.form.given:
            raise ConfigError("the predictor has tables of its basis functions: call predict")
        return self._outcome(_columns(features, self.codes.shape[1], "features"))

    def _outcome(self, x: NDArray[np.float32]) -> Int4Prediction:
        draws = self.offset + self.form.draws(x, self.weights)
        if self.classes:
            mean = _probability(draws).mean(1, dtype=np.float32)
            return Int4Prediction(mean, mean * (np.float32(1.0) - mean))
        mean = draws.mean(1, dtype=np.float32)
        variance = np.square(draws - mean[:, None]).mean(1, dtype=np.float32)
        return Int4Prediction(mean, variance + self.noise)

    def size(self) -> Int4Size:
        """Bytes and multiply-adds, of the predictor and of floating-point models."""
        num, kept = self.codes.shape
        weight_bytes = num * ((kept + 1) // 2)
        # offset, noise, and mean and rate of the inputs
        both = 4 * (2 + (0 if self.form.given else 2 * len(self.input_mean)))
        if self.classes:
            both += 4 * len(link())
        others = 4 * self.float_numbers + both
        return Int4Size(
            weight_bytes,
            4 * num * self.num_basis,
            weight_bytes + self.form.table_bytes + both,
            4 * num * self.num_basis + others,
            self.weights.multiply_adds,
            num * self.num_basis,
            kept,
            self.num_basis,
            4 * self.mean_numbers + others,
            self.mean_numbers,
        )

    def save(self, path: str | Path) -> None:
        """Write the predictor to a NumPy archive, with 4 bits per weight."""
        packed = self.weights.packed.numpy()
        kept = {n: value for n, value in vars(self).items() if n not in ("codes", "form")}
        kept |= {f"form.{n}": value for n, value in self.form.arrays().items()}
        name, count = type(self.form).__name__, self.codes.shape[1]
        with atomic_file(Path(path)) as file:
            np.savez(file, packed=packed, form=name, count=count, **kept)

    @classmethod
    def load(cls, path: str | Path) -> Int4Predictor:
        """Read a file of ``save``; nothing in it is executed."""
        with np.load(path, allow_pickle=False) as file:
            kept = {name: file[name] for name in file.files}
        form = FORMS[str(kept["form"])](
            **{name[5:]: value for name, value in kept.items() if name.startswith("form.")}
        )
        packed = torch.from_numpy(kept["packed"])
        return cls(
            codes=unpack_codes(packed, int(kept["count"])).numpy(),
            zero=int(kept["zero"]),
            form=form,
            input_mean=kept["input_mean"],
            input_rate=kept["input_rate"],
            offset=np.float32(kept["offset"]),
            noise=np.float32(kept["noise"]),
            classes=bool(kept["classes"]),
            num_basis=int(kept["num_basis"]),
            float_numbers=int(kept["float_numbers"]),
            mean_numbers=int(kept["mean_numbers"]),
        )

    def c_source(self) -> str:
        """The predictor as a C file, which needs no library."""
        packed, given = self.weights.packed.numpy(), self.form.given
        head = HEAD.format(
            samples=len(packed),
            kept=self.codes.shape[1],
            what="weights" if isinstance(self.form, SquareNetwork) else "functions",
            inputs=len(self.input_mean),
            row=packed.shape[1],
            zero=self.zero,
            signature=signature(given),
            inputs_are=self.form.c_inputs(len(self.input_mean)),
            outcome="one for the second class, else zero"
            if self.classes
            else "in its own units, noise included",
        )
        tables = array("unsigned char", "gpx_codes", packed) + self.form.c_tables()
        if not given:
            tables += array("float", "gpx_input_mean", self.input_mean)
            tables += array("float", "gpx_input_rate", self.input_rate)
        end = ending(
            given=given,
            offset=self.offset,
            noise=self.noise,
            link=link() if self.classes else None,
            per_unit=LINK_ENTRIES_PER_UNIT,
        )
        return f"{head}\n{tables}\n{self.form.c_functions()}{end}"


def link() -> NDArray[np.float32]:
    """The logistic function from 0 to 16 (257,)."""
    at = np.arange(LINK_RANGE * LINK_ENTRIES_PER_UNIT + 1) / LINK_ENTRIES_PER_UNIT
    return (1.0 / (1.0 + np.exp(-at))).astype(np.float32)


def _probability(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """The logistic function from its table, by the same steps as in C."""
    table = link()
    last = len(table) - 1
    at = np.abs(value) * np.float32(LINK_ENTRIES_PER_UNIT)
    place = np.minimum(at, np.float32(last)).astype(np.int64)
    low, high = table[place], table[np.minimum(place + 1, last)]
    found = np.where(place < last, low + (high - low) * (at - place.astype(np.float32)), low)
    return np.where(value < 0.0, np.float32(1.0) - found, found).astype(np.float32)


def _columns(given: ArrayLike, count: int, what: str) -> NDArray[np.float32]:
    """``given`` as a float32 matrix; raises ShapeError unless it has ``count`` columns."""
    found = np.atleast_2d(np.asarray(given, dtype=np.float32))
    if found.ndim != 2 or found.shape[1] != count:
        raise ShapeError(f"expected {what} with {count} columns, got shape {found.shape}")
    return found
