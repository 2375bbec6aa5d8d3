"""Certificates of trained runs: which runs can have one, at which points, in which files."""

from __future__ import annotations

import copy
import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from gpx.data import Dataset
from gpx.diagnostics.certificate import Certificate, certify, certify_exact
from gpx.diagnostics.report import Report
from gpx.errors import ConfigError
from gpx.inducing import GreedyConditionalVariance
from gpx.inference.exact_solver import choose_solver
from gpx.inference.nystrom import longest_prefix
from gpx.kernels import Kernel
from gpx.likelihoods import Gaussian
from gpx.means import Mean
from gpx.methods.base.posterior import Marginals
from gpx.options.build import target_of
from gpx.options.names import with_option_names
from gpx.runs.folder import RunFolder
from gpx.runs.predictor import Predictor
from gpx.tensor_checks import check_share, own_number

NUM_POINTS = 50
"""Test points certified if the user names none."""
MAX_PRODUCT_ROWS = {"cpu": 20_000, "cuda": 200_000}
"""Most training points for which products with the kernel matrix are used by default."""
EXACT_RANK = 500
"""Inducing points for the certificate of an exact run that is too large to factorise."""


@dataclass(frozen=True)
class CertifyOptions:
    """Options of a certificate.

    Attributes:
        products: whether to use products with the kernel matrix (n^2 each); None: depends on n.
        level: of the central intervals of y.
        threshold: also certify P(y >= threshold), in the target's own unit.
        least: also decide whether that probability is at least this.

    Raises:
        ConfigError: a level or probability outside (0, 1), a probability without a threshold.
    """

    products: bool | None = None
    level: float = 0.95
    threshold: float | None = None
    least: float | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        check_share(level=self.level, probability=self.least)
        if self.least is not None and self.threshold is None:
            raise ConfigError("probability= asks about P(target >= threshold): set threshold= too")


def require_certifiable(config: DictConfig, data: Dataset | None = None) -> None:
    """Raise ConfigError unless a run can have a certificate.

    Args:
        config: of the run.
        data: of the run; None: only what is known without the data is checked.
    """
    approx = target_of(config.approx, "approx")
    likelihood = target_of(config.likelihood, "likelihood")
    if not getattr(approx, "certifiable", False):
        name = getattr(approx, "__name__", config.approx.get("_target_"))
        raise ConfigError(
            f"a run of {name} cannot be certified: certificates bound the distance from exact "
            "inference with the run's own kernel and inducing points, and need approx=sgpr, cglb, "
            "svgp or exact; compare held-out errors (metrics.json) with those of one of these"
        )
    if not (isinstance(likelihood, type) and issubclass(likelihood, Gaussian)):
        name = getattr(likelihood, "__name__", config.likelihood.get("_target_"))
        raise ConfigError(
            f"a run with the likelihood {name} cannot be certified: certificates compare with the "
            "exact posterior of one output with Gaussian noise, and need likelihood=gaussian"
        )
    if data is None:
        return
    if data.sample is not None:
        raise ConfigError(
            "a run on data=stream cannot be certified: a certificate needs all rows in memory; "
            "compare its test metrics with those of a run on a part of the rows"
        )
    if data.target_transform is not None:
        raise ConfigError(
            "a run with data.target_transform= cannot be certified: certificates need an "
            "untransformed target"
        )
    if data.train_noise is not None:
        raise ConfigError(
            "a run with a noise variance or weight for every row (data.noise=, data.weights=) "
            "cannot be certified: certificates take one noise variance for all rows"
        )


def chosen_points(data: Dataset) -> Tensor:
    """Up to NUM_POINTS test inputs, evenly spaced over the rows; standardised, float64.

    Training inputs if there are no test rows.
    """
    inputs = data.test_x if data.num_test else data.train_x
    total = inputs.shape[0]
    count = min(NUM_POINTS, total)
    rows = torch.linspace(0, total - 1, count, dtype=torch.float64).round().long()
    return inputs[rows]


def certify_run(
    predictor: Predictor, config: DictConfig, data: Dataset, points: Tensor, options: CertifyOptions
) -> Report:
    """The certificate of a trained model at points (t, d), standardised.

    Args:
        predictor: the trained model, whose predictions are judged.
        config: of the run, which ``require_certifiable`` accepts.
        data: the split it was trained on.
        points: standardised inputs to certify.
        options: of the certificate.

    Raises:
        ConfigError, DataError, NotPositiveDefinite: see ``gpx.diagnostics.certificate.certify``.
    """
    began = time.perf_counter()
    reference = own_number(predictor.posterior)
    x, y, points = (
        t.to(reference.device, torch.float64) for t in (data.train_x, data.train_y, points)
    )
    found = predictor.posterior.predict(points.to(reference.dtype))
    predicted = Marginals(found.mean.double(), found.variance.double())
    products = options.products
    if products is None:
        products = len(y) <= MAX_PRODUCT_ROWS.get(x.device.type, MAX_PRODUCT_ROWS["cpu"])
    certificate = _certificate(predictor, config, x, y, points, predicted, products)
    scaler = predictor.scaler
    return Report(
        certificate=_on_cpu(certificate),
        model=target_of(config.approx, "approx").__name__,
        points=scaler.original_inputs(points).cpu(),
        input_names=predictor.input_names,
        target_name=predictor.target_name,
        shift=float(scaler.target_mean),
        scale=float(scaler.target_scale),
        products=products,
        best=predictor.posterior.facts().get("variational_distribution") != "as trained",
        level=options.level,
        threshold=options.threshold,
        least=options.least,
        seconds=time.perf_counter() - began,
        reword=lambda text: with_option_names(text, config),
    )


def _certificate(
    predictor: Predictor,
    config: DictConfig,
    x: Tensor,
    y: Tensor,
    points: Tensor,
    predicted: Marginals,
    products: bool,
) -> Certificate:
    posterior, likelihood = predictor.posterior, copy.deepcopy(predictor.likelihood).double()
    assert isinstance(posterior.kernel, Kernel)  # as ``certifiable`` requires
    assert isinstance(posterior.mean, Mean)
    assert isinstance(likelihood, Gaussian)
    kernel = copy.deepcopy(posterior.kernel).double()
    mean = copy.deepcopy(posterior.mean).double()
    variables = posterior.inducing_variables()
    if variables is None:
        if choose_solver("auto", x).name == "cholesky":
            return certify_exact(kernel, mean, likelihood, x, y, points, predicted)
        greedy = GreedyConditionalVariance().select(x, kernel, min(EXACT_RANK, len(y)))
        z = longest_prefix(kernel, greedy.points[: greedy.informative or 1])  # needs no jitter
        return certify(kernel, mean, likelihood, z, x, y, points, predicted, products=products)
    z, features = variables
    jitter = config.approx.get("jitter")
    if jitter is None and z.dtype == torch.float32:
        jitter = 1e-6  # as in the run itself
    return certify(
        kernel,
        mean,
        likelihood,
        z.double(),
        x,
        y,
        points,
        predicted,
        products=products,
        jitter=jitter,
        features=copy.deepcopy(features).double(),
    )


def _on_cpu(found: Certificate) -> Certificate:
    moments = type(found.moments)(*(t.cpu() for t in found.moments))
    predicted = Marginals(*(t.cpu() for t in found.predicted))
    sparse = None if found.sparse is None else Marginals(*(t.cpu() for t in found.sparse))
    return dataclasses.replace(found, moments=moments, predicted=predicted, sparse=sparse)


def write_report(report: Report, folder: RunFolder) -> None:
    """Write diagnostics.md, diagnostics.json and figures/diagnostics.png into the run folder."""
    from gpx.diagnostics.figure import draw  # Matplotlib is slow to import

    folder.write_figure("diagnostics", draw(report))
    points: dict[str, list[Any]] = {**report.columns()}
    answers = report.decisions()
    if answers is not None:
        points["decision"] = answers
    folder.write_json(
        folder.path / "diagnostics.json",
        {"verdict": report.sentence(), "values": report.values(), "points": points},
    )
    folder.write_text(folder.path / "diagnostics.md", report.markdown("figures/diagnostics.png"))
