"""One small problem per public model: what the conformance suites of the contracts run on."""

from functools import partial

import torch

from gpx import models, objectives
from gpx.bases import GridFeatures, InterpolatedGrid, RandomFourier
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian, GaussianOutputs, Softmax
from gpx.means import Constant, Zero
from gpx.methods.deep import GPLayer, Network

NUM, INPUTS = 48, 2


def data(labels=False, num_outputs=1):
    """x (48, 2) on a grid of 8 x 6 cells (which every model takes), y (48,) or (48, p), float64."""
    generator = torch.Generator().manual_seed(3)
    axes = torch.linspace(-1.2, 1.2, 8), torch.linspace(-1.0, 1.0, 6)
    x = torch.cartesian_prod(*(axis.double() for axis in axes))
    y = (2.0 * x).sin().sum(1) + 0.2 * torch.randn(NUM, generator=generator).double()
    y = y.sign() if labels else y
    return x, y if num_outputs == 1 else torch.stack([y.roll(k) for k in range(num_outputs)], 1)


def parts(mean, likelihood):
    return {
        "kernel": RBF(INPUTS, lengthscale=0.8, outputscale=1.3),
        "mean": mean,
        "likelihood": likelihood,
    }


def gaussian(cls, mean=Constant, **options):
    return cls(**parts(mean(), Gaussian(0.05)), **options).double()


def points(cls, **options):
    return gaussian(cls, num_inputs=INPUTS, num_inducing=12, **options)


def deep(likelihood, **options):
    kernel = RBF(INPUTS, lengthscale=0.8, outputscale=1.3)
    sizes = {"num_features": 30, "width": 2, "predict_samples": 5}
    chosen = {"kernel": kernel, "likelihood": likelihood, "num_inputs": INPUTS, **sizes, **options}
    return models.DeepGP(**chosen).double()


FEW = partial(RandomFourier, block_frequencies=10)


def weights(**options):
    chosen = {
        "num_basis": 80,
        "basis": FEW,
        "warm_start_size": 80,
        **options,
    }
    return gaussian(models.QSGP, Zero, **chosen)


def classes(cls, likelihood, **options):
    return cls(**parts(Constant(), likelihood), **options).double()


MODELS = {
    "ExactGP": lambda: gaussian(models.ExactGP),
    "ExactGP iterative": lambda: gaussian(
        models.ExactGP,
        solver="iterative",
        iterative=models.IterativeOptions(rank=20, variance="exact"),
    ),
    "FullyBayesianGP": lambda: gaussian(models.FullyBayesianGP),
    "FullyBayesianSGPR": lambda: points(models.FullyBayesianSGPR, num_data=NUM),
    "CoregionalGP": lambda: models.CoregionalGP(
        **parts(Constant(), GaussianOutputs(2, 0.05))
    ).double(),
    "CoregionalGP of two latents": lambda: models.CoregionalGP(
        **parts(Constant(), GaussianOutputs(2, 0.05)), num_latents=2, rank=1
    ).double(),
    "DerivativeGP": lambda: models.DerivativeGP(
        **parts(Constant(), GaussianOutputs(3, 0.05))
    ).double(),
    "IndependentGP": lambda: models.IndependentGP(
        **parts(Constant(), GaussianOutputs(2, 0.05))
    ).double(),
    "SubsetOfData": lambda: gaussian(models.SubsetOfData, num_points=20),
    "EffectivePrior": lambda: points(models.EffectivePrior, num_data=NUM),
    "EffectivePrior of degenerate rank": lambda: points(models.EffectivePrior, prior="sor"),
    "EffectivePrior of blocks": lambda: points(models.EffectivePrior, prior="pitc"),
    "EffectivePrior of local blocks": lambda: points(models.EffectivePrior, prior="pic"),
    "SGPR": lambda: points(models.SGPR, num_data=NUM),
    "CGLB": lambda: points(models.CGLB, num_data=NUM),
    "SVGP": lambda: points(models.SVGP),
    "SVGP of classes": lambda: models.SVGP(
        **parts(Constant(), Bernoulli()), num_inputs=INPUTS, num_inducing=12
    ).double(),
    "SVGP of outputs": lambda: models.SVGP(
        **parts(Constant(), GaussianOutputs(2, 0.05)), num_inputs=INPUTS, num_inducing=12
    ).double(),
    "QSGP": weights,
    "QSGP full": lambda: weights(covariance="full"),
    "QSGP of classes": lambda: models.QSGP(
        **parts(Zero(), Bernoulli()),
        num_basis=80,
        basis=FEW,
        warm_start_size=80,
    ).double(),
    "QSGPInducing": lambda: gaussian(
        models.QSGPInducing, Zero, num_data=NUM, num_inputs=INPUTS, rank=20, variance_rank=10
    ),
    "QSRVM": lambda: gaussian(
        models.QSRVM, Zero, num_data=NUM, num_inputs=INPUTS, sweeps=30, block_size=8
    ),
    "GridGP": lambda: gaussian(models.GridGP),
    "GRIEF": lambda: gaussian(
        models.GRIEF, num_inputs=INPUTS, num_eigenfunctions=30, search_sweeps=0, trial_evaluations=0
    ),
    "LaplaceGP of classes": lambda: classes(models.LaplaceGP, Bernoulli()),
    "LaplaceGP of several classes": lambda: classes(models.LaplaceGP, Softmax(3)),
    "ExpectationPropagationGP of classes": lambda: classes(
        models.ExpectationPropagationGP, Bernoulli("probit")
    ),
    "VGP of classes": lambda: classes(models.VGP, Bernoulli()),
    "VGP of several classes": lambda: classes(models.VGP, Softmax(3)),
    "SampledGP of classes": lambda: classes(models.SampledGP, Bernoulli()),
    "SampledGP of several classes": lambda: classes(models.SampledGP, Softmax(3)),
    "SKI": lambda: gaussian(models.SKI, num_inputs=INPUTS, grid_size=12),
    "SWSGP": lambda: points(models.SWSGP, num_neighbours=5),
    "VNNGP": lambda: gaussian(models.VNNGP, num_inputs=INPUTS, num_data=NUM, num_neighbours=8),
    "DeepGP": lambda: deep(Gaussian(0.05)),
    "DeepGP of classes": lambda: deep(Bernoulli(), frequencies="learned"),
    "DeepGP of outputs": lambda: deep(GaussianOutputs(2, 0.05)),
    "DeepGP of one layer": lambda: deep(Gaussian(0.05), depth=1, covariance="full"),
    "DKL": lambda: points(
        models.DKL, hidden=[8], num_features=3, pretrain_steps=5, predict_samples=5
    ),
    "DKL with masks": lambda: points(
        models.DKL, hidden=[8], num_features=3, pretrain_steps=5, keep=0.9, predict_samples=5
    ),
    "DeepSVGP": lambda: points(models.DeepSVGP, predict_samples=5),
    "SVDKL": lambda: models.SVDKL(
        kernel=RBF(INPUTS, lengthscale=0.8, outputscale=1.3),
        likelihood=Gaussian(0.05),
        num_inputs=INPUTS,
        hidden=[8],
        num_features=3,
        grid_size=12,
        pretrain_steps=5,
    ).double(),
    "ConvGP": lambda: points(models.ConvGP, image_shape=(1, INPUTS), patch_size=1),
    "CNN": lambda: models.CNN(
        likelihood=Gaussian(0.05),
        num_inputs=INPUTS,
        image_shape=(1, INPUTS),
        num_features=20,
        dropout=True,
        predict_samples=5,
    ).double(),
    "CNNGP": lambda: models.CNNGP(
        likelihood=Gaussian(0.05),
        num_inputs=INPUTS,
        image_shape=(1, INPUTS),
        num_features=20,
        depth=2,
        width=3,
        predict_samples=5,
    ).double(),
    "NetworkModel": lambda: models.NetworkModel(
        Network(torch.nn.Linear(INPUTS, 3), GPLayer(RBF(), 3, covariance="dropout")),
        Gaussian(0.05),
        num_inputs=INPUTS,
        predict_samples=5,
    ).double(),
    "Vecchia": lambda: gaussian(models.Vecchia, num_neighbours=10, block_size=4),
    "SSGP": lambda: gaussian(models.SSGP, num_inputs=INPUTS, num_basis=20, draws=2),
    "VSSGP": lambda: gaussian(models.VSSGP, num_inputs=INPUTS, num_basis=20, draws=2),
    "Committee": lambda: gaussian(models.Committee, rule="rbcm", num_experts=4),
    "Committee that communicates": lambda: gaussian(models.Committee, rule="grbcm", num_experts=5),
    "LocalExperts": lambda: gaussian(models.LocalExperts, num_experts=4),
    "LocalExperts shared": lambda: gaussian(
        models.LocalExperts, num_experts=4, points_per_expert=15, hyperparameters="shared"
    ),
    "MixtureOfExperts": lambda: gaussian(models.MixtureOfExperts, num_experts=3),
    "MixtureOfExperts shared": lambda: gaussian(
        models.MixtureOfExperts, num_experts=3, hyperparameters="shared"
    ),
    "Transductive": lambda: gaussian(models.Transductive, num_experts=3, num_neighbours=9),
    "Direct": lambda: gaussian(
        models.Direct, basis=FEW, num_basis=40, noise=models.NoiseGrid(num_values=3)
    ),
    "DirectMixture": lambda: gaussian(
        models.DirectMixture, basis=FEW, num_basis=40, components=2, sweeps=3
    ),
    "DirectLogistic of classes": lambda: classes(
        models.DirectLogistic, Bernoulli(), basis=FEW, num_basis=40
    ),
    "DirectNetwork": lambda: models.DirectNetwork(
        likelihood=Gaussian(0.05),
        num_inputs=INPUTS,
        hidden=(2,),
        noise=models.NoiseGrid(num_values=3),
        starts=3,
    ).double(),
    "Direct learned": lambda: gaussian(
        models.Direct,
        basis=partial(GridFeatures, num_inputs=INPUTS),
        num_basis=20,
        weights=models.WeightGrid(num_values=5),
        learn_values=True,
    ),
    "Reweighted": lambda: gaussian(
        models.Reweighted,
        basis=partial(GridFeatures, num_inputs=INPUTS),
        num_basis=20,
        priors=models.WeightPriors(),
        inference="type2",
    ),
    "Reweighted interpolated": lambda: gaussian(
        models.Reweighted,
        basis=partial(InterpolatedGrid, num_inputs=INPUTS),
        num_basis=64,
        inference="type2",
    ),
}
"""Name of the class, then what is special: a fresh model in float64."""

OBJECTIVES = {
    "ExactMLL": ("ExactGP", objectives.ExactMLL),
    "CoregionalMLL": ("CoregionalGP", objectives.CoregionalMLL),
    "DerivativeMLL": ("DerivativeGP", objectives.DerivativeMLL),
    "IndependentMLL": ("IndependentGP", objectives.IndependentMLL),
    "LeaveOneOut": ("ExactGP", objectives.LeaveOneOut),
    "MarginalLikelihood": ("ExactGP", objectives.MarginalLikelihood),
    "IterativeMLL": ("ExactGP iterative", objectives.IterativeMLL),
    "BarelyBiasedMLL": ("ExactGP iterative", objectives.BarelyBiasedMLL),
    "CollapsedELBO": ("SGPR", objectives.CollapsedELBO),
    "SubsetEvidence": ("SubsetOfData", objectives.SubsetEvidence),
    "EffectiveEvidence": ("EffectivePrior of blocks", objectives.EffectiveEvidence),
    "CGLowerBound": ("CGLB", objectives.CGLowerBound),
    "SVGPELBO": ("SVGP of classes", lambda: objectives.SVGPELBO(NUM)),
    "WeightSpaceELBO": ("QSGP", objectives.WeightSpaceELBO),
    "QuadruplyStochasticELBO": ("QSGP", lambda: objectives.QuadruplyStochasticELBO(NUM)),
    "SiteBoundELBO": ("QSGP of classes", lambda: objectives.SiteBoundELBO(NUM)),
    "InducingELBO": ("QSGPInducing", lambda: objectives.InducingELBO(NUM)),
    "GridMLL": ("GridGP", objectives.GridMLL),
    "GCV": ("GridGP", objectives.GCV),
    "EigenfunctionEvidence": ("GRIEF", objectives.EigenfunctionEvidence),
    "LaplaceEvidence": ("LaplaceGP of several classes", objectives.LaplaceEvidence),
    "EPEvidence": ("ExpectationPropagationGP of classes", objectives.EPEvidence),
    "VGPELBO": ("VGP of classes", objectives.VGPELBO),
    "LatentLikelihood": ("SampledGP of classes", objectives.LatentLikelihood),
    "SKIEvidence": ("SKI", objectives.SKIEvidence),
    "SWSGPObjective": ("SWSGP", lambda: objectives.SWSGPObjective(NUM)),
    "VNNGPELBO": ("VNNGP", lambda: objectives.VNNGPELBO(NUM)),
    "SampledELBO": ("DeepGP", lambda: objectives.SampledELBO(NUM)),
    "PredictiveLogLikelihood": ("DeepGP", lambda: objectives.PredictiveLogLikelihood(NUM)),
    "VecchiaMLL": ("Vecchia", objectives.VecchiaMLL),
    "SparseSpectrumEvidence": ("SSGP", objectives.SparseSpectrumEvidence),
    "SparseSpectrumELBO": ("VSSGP", objectives.SparseSpectrumELBO),
    "ExpertsMLL": ("Committee", objectives.ExpertsMLL),
    "HardCutEvidence": ("MixtureOfExperts shared", objectives.HardCutEvidence),
    "DirectELBO": ("Direct", objectives.DirectELBO),
    "DirectMixtureELBO": ("DirectMixture", objectives.DirectMixtureELBO),
    "DirectLogisticBound": (
        "DirectLogistic of classes",
        lambda: objectives.DirectLogisticBound(NUM),
    ),
    "DirectNetworkELBO": ("DirectNetwork", objectives.DirectNetworkELBO),
    "DirectSampledELBO": ("DirectMixture", lambda: objectives.DirectSampledELBO(NUM, 10)),
    "ReweightedEvidence": ("Reweighted", objectives.ReweightedEvidence),
}
"""Public objective -> a model it fits, and how it is made."""


def prepared(name):
    """A model at its start, and its data."""
    model = MODELS[name]()
    x, y = data(labels="classes" in name, num_outputs=model.num_outputs)
    if model.likelihood.task == "multiclass":
        y = 1.0 + y.roll(5).add(y).sign()  # of 0, 1 and 2
    model.settle(x)
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return model, x, y
