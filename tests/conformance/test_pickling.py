"""Everything public that holds parameters can be pickled and deep-copied, and predicts the same.

joblib, scikit-learn and multiprocessing do both. A public class without an entry fails.
"""

import copy
import functools
import pickle
import subprocess
import sys
from functools import partial

import pytest
import torch
from public_classes import public_classes
from torch import Tensor, nn

import gpx.bases as bases
import gpx.kernels as kernels
import gpx.likelihoods as likelihoods
import gpx.means as means
import gpx.models as models
from gpx.constraints import natural_parameters
from gpx.methods.deep import GPLayer, Network

WAYS = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "deepcopy": copy.deepcopy,
    "pickled copy": lambda thing: pickle.loads(pickle.dumps(copy.deepcopy(thing))),
    "copied pickle": lambda thing: copy.deepcopy(pickle.loads(pickle.dumps(thing))),
}
every_way = pytest.mark.parametrize("way", WAYS)

# 36 points on a grid, so that every model takes them
X = torch.cartesian_prod(torch.linspace(0, 1, 6), torch.linspace(0, 1, 6)).double()
Y = torch.sin(4.0 * X[:, 0]) + X[:, 1]
NEW = torch.tensor([[0.2, 0.3], [0.55, 0.9], [1.0, 0.1]]).double()


def rbf():
    return kernels.RBF(2, [0.6, 0.9], 1.3)


KERNELS = {
    "RBF": rbf,
    "Matern12": lambda: kernels.Matern12(2, [0.6, 0.9], 1.3),
    "Matern32": lambda: kernels.Matern32(2, [0.6, 0.9], 1.3),
    "Matern52": lambda: kernels.Matern52(2, [0.6, 0.9], 1.3, active_dims=[1, 0]),
    "MaternNu": lambda: kernels.MaternNu(2, [0.6, 0.9], 1.3, nu=1.2),
    "RationalQuadratic": lambda: kernels.RationalQuadratic(2, [0.6, 0.9], 1.3, alpha=0.8),
    "Wendland": lambda: kernels.Wendland(2, [0.6, 0.9], 1.3),
    "Periodic": lambda: kernels.Periodic(2, 0.7, None, period=[1.1, 2.0]),
    "Linear": lambda: kernels.Linear(2, [0.5, 1.0]),
    "ArcCosine": lambda: kernels.ArcCosine(1, 2, [0.6, 0.9], 1.3),
    "Polynomial": lambda: kernels.Polynomial(3, 0.7, 0.2),
    "Constant": lambda: kernels.Constant(0.6),
    "Convolutional": lambda: kernels.Convolutional(kernels.RBF(), (1, 2), 1),
    "Cosine": lambda: kernels.Cosine(2, [1.5, 2.0], 1.3),
    "SpectralMixture": lambda: kernels.SpectralMixture(2, 2, 1.3, 0.4, 0.2),
    "Scale": lambda: kernels.Scale(rbf(), 0.4),
    "AxisProduct": lambda: kernels.AxisProduct("matern32", 2, [[0], [1]], [0.6, 0.9], 1.3),
    "Sum": lambda: rbf() + kernels.Linear(active_dims=[1]) + 0.5,
    "Product": lambda: rbf() * kernels.Periodic(None, active_dims=[0]),
    "Categorical": lambda: kernels.Categorical([[0], [1]], [0.6, 0.9], 1.3),
    "ChangePoints": lambda: kernels.ChangePoints([rbf(), rbf()], [0.3], 4.0, axis=1),
    "Warped": lambda: kernels.Warped(rbf(), kernels.Kumaraswamy(2, [0.7, 1.4], 0.8)),
}
LIKELIHOODS = {
    "Bernoulli": lambda: likelihoods.Bernoulli(),
    "Beta": lambda: likelihoods.Beta(7.0),
    "Gaussian": lambda: likelihoods.Gaussian(0.2),
    "GaussianOutputs": lambda: likelihoods.GaussianOutputs(2, 0.2),
    "Heteroscedastic": lambda: likelihoods.Heteroscedastic(0.2, 0.7),
    "MixedOutputs": lambda: likelihoods.MixedOutputs(2, 2, 0.2),
    "Laplace": lambda: likelihoods.Laplace(0.4),
    "NegativeBinomial": lambda: likelihoods.NegativeBinomial(0.3),
    "Ordinal": lambda: likelihoods.Ordinal(3, "probit"),
    "Poisson": lambda: likelihoods.Poisson(),
    "Softmax": lambda: likelihoods.Softmax(3),
    "StudentT": lambda: likelihoods.StudentT(0.3, 5.0),
}
MEANS = {
    "Constant": lambda: means.Constant(0.3),
    "Linear": lambda: means.Linear(2, 0.3),
    "Zero": lambda: means.Zero(),
}
BASES = {
    "ArcCosineFeatures": lambda: bases.ArcCosineFeatures(kernels.ArcCosine(1, 2), 8, 2),
    "FastfoodFourier": lambda: bases.FastfoodFourier(rbf(), 8),
    "GaussHermiteFourier": lambda: bases.GaussHermiteFourier(rbf(), 16),
    "GridEigenfunctions": lambda: bases.GridEigenfunctions(rbf(), 2, 8),
    "GridFeatures": lambda: bases.GridFeatures(rbf(), 8, 2),
    "ImportanceWeightedFourier": lambda: bases.ImportanceWeightedFourier(rbf(), 8, 2),
    "InducingPoints": lambda: bases.InducingPoints(rbf(), X[:5]),
    "KernelDictionary": lambda: bases.KernelDictionary(rbf(), X[:5]),
    "InterpolatedGrid": lambda: bases.InterpolatedGrid(rbf(), 36, 2),
    "LaplacianEigenfunctions": lambda: bases.LaplacianEigenfunctions(rbf(), 8, 2),
    "OrthogonalFourier": lambda: bases.OrthogonalFourier(rbf(), 8),
    "QuasiMonteCarloFourier": lambda: bases.QuasiMonteCarloFourier(rbf(), 8),
    "RandomFourier": lambda: bases.RandomFourier(rbf(), 8),
    "StructuredOrthogonalFourier": lambda: bases.StructuredOrthogonalFourier(rbf(), 8),
    "TrainingPoints": lambda: bases.TrainingPoints(rbf(), 8, 2, 20),
}


def parts(mean=None):
    return {
        "kernel": rbf(),
        "mean": means.Constant(0.2) if mean is None else mean,
        "likelihood": likelihoods.Gaussian(0.05),
    }


def classes(likelihood):
    return {**parts(), "likelihood": likelihood}


MODELS = {
    "ExactGP": lambda: models.ExactGP(**parts()),
    "CoregionalGP": lambda: models.CoregionalGP(
        **parts() | {"likelihood": likelihoods.GaussianOutputs(2)}
    ),
    "ExactGP, iterative": lambda: models.ExactGP(**parts(), solver="iterative"),
    "SGPR": lambda: models.SGPR(**parts(), num_inputs=2, num_inducing=7),
    "EffectivePrior": lambda: models.EffectivePrior(**parts(), num_inputs=2, num_inducing=7),
    "EffectivePrior, PIC": lambda: models.EffectivePrior(
        **parts(), num_inputs=2, num_inducing=7, prior="pic", num_blocks=3
    ),
    "SubsetOfData": lambda: models.SubsetOfData(**parts(), num_points=9),
    "CGLB": lambda: models.CGLB(**parts(), num_inputs=2, num_data=36, num_inducing=7),
    "SVGP": lambda: models.SVGP(**parts(), num_inputs=2, num_inducing=7),
    "GridGP": lambda: models.GridGP(**parts()),
    "GRIEF": lambda: models.GRIEF(**parts(), num_inputs=2, num_eigenfunctions=12),
    "QSGP": lambda: models.QSGP(**parts(means.Zero()), num_basis=20, warm_start_size=20),
    "QSGPInducing": lambda: models.QSGPInducing(
        **parts(means.Zero()), num_data=36, num_inputs=2, rank=10, variance_rank=10
    ),
    "QSRVM": lambda: models.QSRVM(**parts(means.Zero()), num_data=36, num_inputs=2, sweeps=3),
    "LaplaceGP": lambda: models.LaplaceGP(**classes(likelihoods.Bernoulli())),
    "ExpectationPropagationGP": lambda: models.ExpectationPropagationGP(
        **classes(likelihoods.Bernoulli("probit"))
    ),
    "SampledGP": lambda: models.SampledGP(**classes(likelihoods.Bernoulli())),
    "SKI": lambda: models.SKI(**parts(), num_inputs=2, grid_size=9),
    "SWSGP": lambda: models.SWSGP(**parts(), num_inputs=2, num_inducing=7, num_neighbours=3),
    "VNNGP": lambda: models.VNNGP(**parts(), num_inputs=2, num_data=36, num_neighbours=5),
    "Vecchia": lambda: models.Vecchia(**parts(), num_neighbours=10, block_size=4),
    "DeepGP": lambda: models.DeepGP(
        kernel=rbf(), likelihood=likelihoods.Gaussian(0.05), num_inputs=2, num_features=20
    ),
    "DKL": lambda: models.DKL(
        **parts(), num_inputs=2, num_inducing=7, hidden=[5], num_features=3, pretrain_steps=3
    ),
    "DeepSVGP": lambda: models.DeepSVGP(**parts(), num_inputs=2, num_inducing=7, predict_samples=3),
    "SVDKL": lambda: models.SVDKL(
        kernel=rbf(),
        likelihood=likelihoods.Gaussian(0.05),
        num_inputs=2,
        hidden=[5],
        num_features=3,
        grid_size=10,
        pretrain_steps=3,
    ),
    "ConvGP": lambda: models.ConvGP(
        **parts(), num_inputs=2, image_shape=(1, 2), patch_size=1, num_inducing=5
    ),
    "CNN": lambda: models.CNN(
        likelihood=likelihoods.Gaussian(0.05),
        num_inputs=2,
        image_shape=(1, 2),
        num_features=20,
        dropout=True,
        predict_samples=3,
    ),
    "CNNGP": lambda: models.CNNGP(
        likelihood=likelihoods.Gaussian(0.05),
        num_inputs=2,
        image_shape=(1, 2),
        num_features=20,
        predict_samples=3,
    ),
    "NetworkModel": lambda: models.NetworkModel(
        Network(nn.Linear(2, 3), GPLayer(kernels.ArcCosine(), 3)),
        likelihoods.Gaussian(0.05),
        num_inputs=2,
    ),
    "SSGP": lambda: models.SSGP(**parts(), num_inputs=2, num_basis=8, draws=2),
    "VSSGP": lambda: models.VSSGP(**parts(), num_inputs=2, num_basis=8, draws=2),
    "Committee": lambda: models.Committee(**parts(), num_experts=3),
    "LocalExperts": lambda: models.LocalExperts(**parts(), num_experts=3),
    "MixtureOfExperts": lambda: models.MixtureOfExperts(**parts(), num_experts=3),
    "Transductive": lambda: models.Transductive(**parts(), num_experts=3, num_neighbours=7),
    "Direct": lambda: models.Direct(**parts(), basis=bases.RandomFourier, num_basis=8),
    "DirectLogistic": lambda: models.DirectLogistic(
        **classes(likelihoods.Bernoulli()), basis=bases.RandomFourier, num_basis=8
    ),
    "DirectNetwork": lambda: models.DirectNetwork(
        likelihood=likelihoods.Gaussian(0.05), num_inputs=2, hidden=(2,), starts=2
    ),
    "DirectMixture": lambda: models.DirectMixture(
        **parts(), basis=bases.RandomFourier, num_basis=8, components=2
    ),
    "Reweighted": lambda: models.Reweighted(
        **parts(),
        basis=partial(bases.GridFeatures, num_inputs=2),
        num_basis=12,
        priors=models.WeightPriors(),
        inference="type2",
    ),
}


def test_every_public_class_has_an_entry():
    assert public_classes(kernels, kernels.Kernel) == set(KERNELS)
    assert public_classes(likelihoods, likelihoods.Likelihood) == set(LIKELIHOODS)
    assert public_classes(means, means.Mean) == set(MEANS)
    assert public_classes(bases, bases.Basis) == set(BASES)
    assert public_classes(models, models.Model) == {name.split(",")[0] for name in MODELS}
    # posteriors are reached through the models
    reached = {type(trained(name)[1]).__name__ for name in MODELS}
    assert public_classes(models, models.Posterior) <= reached


def same(one, other):
    assert type(one).__name__ == type(other).__name__
    if isinstance(one, nn.Module):
        names = [name for name, _ in one.named_parameters()]
        assert names == [name for name, _ in other.named_parameters()]  # optimisers go by order
        a, b = natural_parameters(one), natural_parameters(other)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
        assert [p.requires_grad for p in one.parameters()] == [
            p.requires_grad for p in other.parameters()
        ]
        mine, theirs = one.state_dict(), other.state_dict()
        assert mine.keys() == theirs.keys()


def equal(one, other):
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


@every_way
@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name, way):
    kernel = KERNELS[name]().double()
    first = next(kernel.parameters()).requires_grad_(False)  # a choice that must survive
    again = WAYS[way](kernel)
    same(kernel, again)
    assert torch.equal(kernel.evaluate(X, NEW), again.evaluate(X, NEW))
    first.data.add_(1.0)  # the copy is its own
    assert not torch.equal(kernel.evaluate(X, NEW), again.evaluate(X, NEW))
    if any(p.requires_grad for p in again.parameters()):
        again.evaluate(X, NEW).sum().backward()


@every_way
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods(name, way):
    likelihood = LIKELIHOODS[name]().double()
    again = WAYS[way](likelihood)
    same(likelihood, again)
    latents = likelihood.num_latents
    shape = (5,) if latents == 1 else (5, latents)
    f = torch.linspace(-1, 1, 15).double()[: torch.Size(shape).numel()].reshape(shape)
    y = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]).double()
    y = y.long() if name == "Softmax" else y
    y = 0.25 + 0.5 * y if name == "Beta" else y
    y = y if likelihood.num_outputs == 1 else torch.stack([y, 1.0 - y], 1)
    assert torch.equal(likelihood.log_prob(y, f), again.log_prob(y, f))


@every_way
@pytest.mark.parametrize("name", MEANS)
def test_means(name, way):
    mean = MEANS[name]().double()
    again = WAYS[way](mean)
    same(mean, again)
    assert torch.equal(mean(X), again(X))


@every_way
@pytest.mark.parametrize("name", BASES)
def test_bases(name, way):
    basis = BASES[name]().double()
    if hasattr(basis, "prepare"):
        basis.prepare(X)
    again = WAYS[way](basis)
    same(basis, again)
    assert torch.equal(basis(NEW), again(NEW))


@functools.cache
def trained(name):
    generator = torch.Generator().manual_seed(0)
    model = MODELS[name]().double()
    y = targets(model)
    model.settle(X)
    model.initialise(X, y, generator=generator)
    return model, model.condition(X, y)


def targets(model):
    if model.num_outputs > 1:
        return torch.stack([Y, 1.0 - Y], 1)
    return (Y - 0.7).sign() if model.likelihood.task == "binary" else Y


@pytest.mark.parametrize("name", MODELS)
def test_models_and_posteriors(name):
    model, posterior = trained(name)
    expected, y = posterior.predict(NEW), targets(model)
    anew = model.condition(X, y).predict(NEW)
    for way in WAYS.values():
        again, copied = way(model), way(posterior)
        same(model, again)
        same(posterior, copied)
        equal(copied.predict(NEW), expected)
        equal(again.condition(X, y).predict(NEW), anew)


@pytest.mark.parametrize("name", MODELS)
def test_what_predictions_keep_is_not_in_a_pickle_and_follows_the_precision(name):
    """Factors are worked out anew: they would make a pickle n x n, and are of one precision."""
    model, posterior = trained(name)
    used, fresh = copy.deepcopy(posterior), model.new_posterior().double()
    fresh.load_state_dict(posterior.state_dict())
    size = len(pickle.dumps(fresh))
    used.predict(NEW)
    assert len(pickle.dumps(used)) <= 1.1 * size
    found, expected = (one.float().predict(NEW.float()) for one in (used, fresh))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_shared_parts_stay_shared():
    model = MODELS["ExactGP"]().double()
    pair = nn.ModuleList([model, kernels.Scale(model.kernel, 2.0).double()])
    for way in WAYS.values():
        first, second = way(pair)
        assert first.kernel is second.kernel
        assert first.kernel is not model.kernel


def test_a_shallow_copy_shares_its_parameters():
    kernel = rbf().double()
    again = copy.copy(kernel)
    kernel.lengthscale = torch.tensor([0.3, 0.4]).double()
    assert again is not kernel
    assert torch.equal(again.evaluate(X, NEW), kernel.evaluate(X, NEW))


def test_another_process_reads_it(tmp_path):
    """Where no parametrised class was ever made."""
    kernel = KERNELS["Sum"]().double()
    file = tmp_path / "kernel.pickle"
    file.write_bytes(pickle.dumps((kernel, X, NEW)))
    code = (
        "import pickle, sys; kernel, x, new = pickle.load(open(sys.argv[1], 'rb')); "
        "print(repr(kernel.evaluate(x, new).sum().item()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == kernel.evaluate(X, NEW).sum().item()


def test_an_optimiser_continues_on_the_copy():
    """A step on a copy moves its own parameters by what the original's would have."""
    kernel = rbf().double()
    again = WAYS["pickle"](kernel)

    def step(module: nn.Module) -> Tensor:
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        module.evaluate(X, NEW).sum().backward()
        optimiser.step()
        return module.lengthscale.detach()

    assert torch.equal(step(again), step(kernel))
    assert not torch.equal(again.lengthscale, rbf().double().lengthscale)
