"""4-bit export of every basis that discrete weights take, of two classes and of networks."""

from functools import partial

import numpy as np
import pytest
import torch
from int4_by_c import by_c, needs_compiler

import gpx
from gpx.bases import (
    ArcCosineFeatures,
    Basis,
    GaussHermiteFourier,
    GridFeatures,
    GridOptions,
    ImportanceWeightedFourier,
    KernelDictionary,
    LaplacianEigenfunctions,
    OrthogonalFourier,
    RandomFourier,
)
from gpx.data import Standardiser
from gpx.errors import ConfigError
from gpx.kernels import RBF, ArcCosine, Matern12, Matern52, Periodic
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Constant
from gpx.models import Direct, DirectLogistic, DirectMixture, DirectNetwork, NoiseGrid
from gpx.runs import Int4Predictor
from gpx.runs.predictor import Predictor

N = 40


def table(n=N, seed=0):
    draws = np.random.default_rng(seed)
    x = np.stack([draws.uniform(90.0, 110.0, n), draws.uniform(-1.0, 1.0, n)], 1)
    return x, 5.0 + 3.0 * np.sin(x[:, 0] / 3.0) * x[:, 1] + 0.3 * draws.normal(size=n)


class Powers(Basis):
    """1, x_1, x_2 and their squares, with variances of their own: a basis without a form."""

    def __init__(self, kernel, num_basis):
        super().__init__()
        self.kernel, self.num_basis = kernel, 5

    def forward(self, x, columns=None):
        found = torch.cat([torch.ones_like(x[:, :1]), x, x.square()], 1)
        return found if columns is None else found[:, columns]

    def precision_diagonal(self, columns=None):
        found = torch.tensor([1.0, 1.0, 4.0, 9.0, 9.0], dtype=torch.float64)
        return found if columns is None else found[columns]

    def mean_column_square(self):
        return torch.ones(())


def dictionary(kernel, num_basis):
    grid = torch.linspace(-1.5, 1.5, 5, dtype=torch.float64)
    found = KernelDictionary(kernel, torch.cartesian_prod(grid, grid), precision=2.0).double()
    found.log_precision.data += torch.linspace(-1.0, 1.0, 25, dtype=torch.float64).unsqueeze(1)
    return found


def rbf():
    return RBF(2, lengthscale=[0.8, 1.5], outputscale=1.4)


INPUTS = {"num_inputs": 2}
BASES = {
    "random": (rbf, RandomFourier, 60),
    "spread": (rbf, partial(RandomFourier, spread=2.0), 60),
    "orthogonal": (rbf, OrthogonalFourier, 60),
    "gauss-hermite": (rbf, GaussHermiteFourier, 16),
    "importance": (rbf, partial(ImportanceWeightedFourier, **INPUTS), 60),
    "grid": (rbf, partial(GridFeatures, **INPUTS), 30),
    "laplacian": (rbf, partial(LaplacianEigenfunctions, **INPUTS), 30),
    "centres": (rbf, dictionary, 25),
    "rough centres": (lambda: Matern12(lengthscale=0.9), dictionary, 25),
    "centres of a column": (lambda: Matern52(lengthscale=0.9, active_dims=[1]), dictionary, 25),
    "units": (lambda: ArcCosine(1, 2), partial(ArcCosineFeatures, **INPUTS), 30),
    "periodic centres": (lambda: Periodic(2), dictionary, 25),
    "powers": (rbf, Powers, 5),
}
GIVEN = ("units", "periodic centres", "powers")


def predictor_of(kernel, basis, num_basis, cls=Direct, constant=False, **options):
    """A model after two sweeps, as ``gpx.load`` would give it; the second input may be constant."""
    x, y = (torch.from_numpy(v) for v in table())
    if constant:
        x[:, 1] = 0.5
    scaler, _ = Standardiser.fit(x, y, scale_targets=True)
    x, y = scaler.transform_inputs(x), (y - scaler.target_mean) / scaler.target_scale
    likelihood = Bernoulli() if cls is DirectLogistic else Gaussian(0.05)
    made = cls(
        kernel=kernel().double(),
        mean=Constant(0.2),
        likelihood=likelihood,
        basis=basis,
        num_basis=num_basis,
        **options,
    ).double()
    labels = ()
    if cls is DirectLogistic:
        y, labels = y.sign(), ("low", "high")
    made.initialise(x, y, generator=torch.Generator().manual_seed(0))
    if cls is Direct:
        for _ in range(2):
            made.sweep()
    posterior = made.condition(x, y)
    return Predictor(posterior, likelihood, scaler, ("a", "b"), "y", labels)


def draws_of(predictor, inputs, samples):
    """The model's own functions (samples, n) at the draws that the export takes."""
    paths = predictor.posterior.sample_paths(samples, generator=torch.Generator().manual_seed(0))
    return paths(predictor._standardised(inputs)).detach()


@pytest.mark.parametrize("name", BASES)
def test_draws_are_those_of_the_model(name, tmp_path):
    predictor, samples = predictor_of(*BASES[name]), 6
    inputs = table(50, seed=1)[0]
    found = gpx.export(predictor, tmp_path / "model.c", samples=samples)
    assert found.form.given == (name in GIVEN)
    drawn = predictor.scaler.original_mean(draws_of(predictor, inputs, samples)).numpy()
    if found.form.given:
        x = predictor._standardised(inputs)
        got = found.predict_features(predictor.posterior.basis(x).detach()[:, found.form.columns])
        close = 1e-5
    else:
        got = found.predict(inputs)
        # functions from tables: 1e-4 of the largest each, with errors of either sign
        close = 2e-3
    unit = float(predictor.scaler.target_scale)
    np.testing.assert_allclose(got.mean, drawn.mean(0), atol=close * unit)
    noise = 0.05 * unit**2
    np.testing.assert_allclose(got.variance, drawn.var(0) + noise, atol=3 * close * unit**2)


@needs_compiler
@pytest.mark.parametrize("name", BASES)
def test_the_c_function_does_the_same(name, tmp_path):
    predictor = predictor_of(*BASES[name])
    gpx.export(predictor, tmp_path / "model.c", samples=5)
    found = Int4Predictor.load(tmp_path / "model.npz")
    assert found.c_source() == (tmp_path / "model.c").read_text()
    inputs = table(100, seed=2)[0]
    inputs[:4] = [[1e9, -1e9], [-1e3, 3.0], [0.0, 0.0], [100.0, 1.25]]
    if found.form.given:
        values = np.random.default_rng(3).normal(size=(100, found.codes.shape[1]))
        want = found.predict_features(values)
        mean, variance = by_c(tmp_path / "model.c", values, "gpx_predict_features")
    else:
        want = found.predict(inputs)
        mean, variance = by_c(tmp_path / "model.c", inputs)
    np.testing.assert_allclose(mean, want.mean, rtol=2e-6)
    np.testing.assert_allclose(variance, want.variance, rtol=1e-5)


@needs_compiler
def test_a_constant_column_is_exported(tmp_path):
    predictor = predictor_of(*BASES["grid"], constant=True)
    found = gpx.export(predictor, tmp_path / "model.c", samples=5)
    inputs = table(50, seed=1)[0]
    inputs[:, 1] = 0.5
    drawn = predictor.scaler.original_mean(draws_of(predictor, inputs, 5)).numpy()
    want = found.predict(inputs)
    unit = float(predictor.scaler.target_scale)
    np.testing.assert_allclose(want.mean, drawn.mean(0), atol=2e-3 * unit)
    mean, variance = by_c(tmp_path / "model.c", inputs)
    np.testing.assert_allclose(mean, want.mean, rtol=2e-6)
    np.testing.assert_allclose(variance, want.variance, rtol=1e-5)


@needs_compiler
@pytest.mark.parametrize("name", ["random", "laplacian"])
def test_two_classes_are_probabilities(name, tmp_path):
    predictor = predictor_of(*BASES[name], cls=DirectLogistic)
    found = gpx.export(predictor, tmp_path / "model.c", samples=7)
    inputs = table(60, seed=3)[0]
    got = found.predict(inputs)
    drawn = draws_of(predictor, inputs, 7).sigmoid().mean(0)
    np.testing.assert_allclose(got.mean, drawn, atol=1e-3)
    np.testing.assert_allclose(got.variance, got.mean * (1.0 - got.mean), rtol=1e-6)
    mean, variance = by_c(tmp_path / "model.c", inputs)
    np.testing.assert_allclose(mean, got.mean, rtol=2e-6)
    np.testing.assert_allclose(variance, got.variance, rtol=1e-5)


def test_logits_far_out_are_certain(tmp_path):
    predictor = predictor_of(*BASES["random"], cls=DirectLogistic)
    predictor.posterior.mean.constant.data.fill_(40.0)
    found = gpx.export(predictor, tmp_path / "model.c", samples=3)
    assert (found.predict(table()[0]).mean > 1.0 - 1e-6).all()
    predictor.posterior.mean.constant.data.fill_(-40.0)
    found = gpx.export(predictor, tmp_path / "model.c", samples=3)
    assert (found.predict(table()[0]).mean < 1e-6).all()


@needs_compiler
@pytest.mark.parametrize(("hidden", "bias"), [([], True), ([3], True), ([2, 2], False)])
def test_networks_of_squares(hidden, bias, tmp_path):
    x, y = (torch.from_numpy(v) for v in table())
    scaler, _ = Standardiser.fit(x, y, scale_targets=True)
    x, y = scaler.transform_inputs(x), (y - scaler.target_mean) / scaler.target_scale
    made = DirectNetwork(
        likelihood=Gaussian(0.05), num_inputs=2, hidden=hidden, bias=bias, noise=NoiseGrid()
    ).double()
    made.initialise(x, y, generator=torch.Generator().manual_seed(0))
    predictor = Predictor(made.condition(x, y), Gaussian(0.05), scaler, ("a", "b"), "y")
    found = gpx.export(predictor, tmp_path / "model.c", samples=5)
    inputs = table(50, seed=1)[0]
    got = found.predict(inputs)
    drawn = scaler.original_mean(draws_of(predictor, inputs, 5)).numpy()
    np.testing.assert_allclose(got.mean, drawn.mean(0), rtol=1e-4)
    noise = float(predictor.posterior.noise_variance(predictor.likelihood)) * float(
        scaler.target_scale**2
    )
    np.testing.assert_allclose(got.variance, drawn.var(0) + noise, rtol=1e-4)
    mean, variance = by_c(tmp_path / "model.c", inputs)
    np.testing.assert_allclose(mean, got.mean, rtol=2e-6)
    np.testing.assert_allclose(variance, got.variance, rtol=1e-5)
    assert found.size().functions == found.size().num_basis == len(made.logits)


def test_mixtures_have_the_same_export(tmp_path):
    predictor = predictor_of(*BASES["grid"], cls=DirectMixture, components=2)
    found = gpx.export(predictor, tmp_path / "model.c", samples=6)
    inputs = table(20, seed=4)[0]
    drawn = predictor.scaler.original_mean(draws_of(predictor, inputs, 6)).mean(0)
    unit = float(predictor.scaler.target_scale)
    np.testing.assert_allclose(found.predict(inputs).mean, drawn, atol=2e-3 * unit)


def test_functions_of_one_input_that_no_table_follows_are_refused(tmp_path):
    rough = partial(GridFeatures, **INPUTS, grid=GridOptions(points_per_dim=40), noise_first=False)
    predictor = predictor_of(lambda: RBF(2, lengthscale=1e-4), rough, 50)
    with pytest.raises(ConfigError, match="longer lengthscales"):
        gpx.export(predictor, tmp_path / "model.c")


def test_inputs_and_features_are_not_mistaken_for_each_other(tmp_path):
    given = gpx.export(predictor_of(*BASES["powers"]), tmp_path / "a.c", samples=2)
    with pytest.raises(ConfigError, match="predict_features"):
        given.predict(table()[0])
    own = gpx.export(predictor_of(*BASES["random"]), tmp_path / "b.c", samples=2)
    with pytest.raises(ConfigError, match="call predict"):
        own.predict_features(np.zeros((1, 3)))


def test_the_c_file_names_the_functions_it_wants(tmp_path):
    found = gpx.export(predictor_of(*BASES["units"]), tmp_path / "model.c", samples=1)
    columns = found.form.columns
    assert 0 < len(columns) < 30
    text = " ".join((tmp_path / "model.c").read_text().split("*/")[0].split())
    assert f"from 0: {' '.join(map(str, columns))}." in text


def test_sizes_count_the_tables(tmp_path):
    own = gpx.export(predictor_of(*BASES["centres"]), tmp_path / "a.c", samples=3)
    size, form = own.size(), own.form
    assert size.weight_bytes == 3 * -(-size.functions // 2)
    tables = 4 * form.centres.size + 2 * form.profile.size + 2 * form.factor.size + 4
    assert size.total_bytes == size.weight_bytes + tables + 4 * (2 + 4)
    assert size.float_total_bytes == 4 * (3 * 25 + 1 + 25 * 2 + 2 + 4)
