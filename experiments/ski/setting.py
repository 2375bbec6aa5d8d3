"""The synthetic data and fixed hyperparameters of Hultin 2017, section 4.1.

The random draws are those of the float64 prototype whose figures the tables show: the exact log
evidence at n = 1,000 and seed 0 is 2349.5 in both.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import SKI, ExactGP

NOISE = 1e-3
"""Noise variance of the models; the data have 1e-4, as published."""


def command_line(
    doc: str, *, judge: bool = False, tables: Iterable[str] = ()
) -> argparse.Namespace:
    """Parse the options of a script of this folder and set torch to one thread.

    Args:
        doc: of the script; its first line is what --help says.
        judge: add --judge, which writes the checks of the saved rows again.
        tables: names of the tables that --only accepts.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes; writes nothing")
    if judge:
        parser.add_argument(
            "--judge", action="store_true", help="write the checks of the saved rows again"
        )
    if tables:
        parser.add_argument("--only", nargs="*", choices=[*tables], default=[*tables])
    torch.set_num_threads(1)
    return parser.parse_args()


class Data(NamedTuple):
    """Training rows x (n, d), y (n,), and test rows."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @property
    def all_x(self) -> Tensor:
        """Training and test inputs, which a grid must span for predictions."""
        return torch.cat([self.x, self.test_x])


def synthetic(n: int, seed: int = 0, inputs: int = 1, tests: int = 100) -> Data:
    """Equation 4.1: one draw of the weights per seed, inputs uniform on (-10, 10)^d."""
    random = np.random.default_rng(seed)
    weights = random.uniform(-1.0, 1.0, (2, inputs))

    def rows(count: int) -> tuple[Tensor, Tensor]:
        x = random.uniform(-10.0, 10.0, (count, inputs))
        wave = 4.0 * (weights[0] * np.sin(4.0 * weights[1] * x)).sum(1)
        y = wave * np.exp(-np.square(x).sum(1) / (50.0 * inputs))
        return torch.from_numpy(x), torch.from_numpy(y + 0.01 * random.standard_normal(count))

    return Data(*rows(n), *rows(tests))


def exact_model(inputs: int = 1) -> ExactGP:
    """Exact GP with lengthscale and signal variance 1."""
    kernel = RBF(inputs, 1.0, 1.0)
    return ExactGP(kernel=kernel, mean=Zero(), likelihood=Gaussian(NOISE)).double()


def grid_model(x: Tensor, size: int, **options: Any) -> SKI:
    """SKI with these hyperparameters on a grid over x (n, d).

    The lengthscale is raised to the grid spacing where that is above 1.

    Args:
        size: points of each axis.
        options: of ``SKI``.
    """
    inputs = x.shape[1]
    spacing = 20.0 / max(1, size - 5)
    model = SKI(
        kernel=RBF(inputs, max(1.0, 1.001 * spacing), 1.0),
        mean=Zero(),
        likelihood=Gaussian(NOISE),
        num_inputs=inputs,
        grid_size=size,
        **options,
    ).double()
    generator = torch.Generator().manual_seed(0)
    model.initialise(x, x.new_zeros(len(x)), generator=generator)
    return model
