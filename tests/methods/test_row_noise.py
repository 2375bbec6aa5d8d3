"""Noise known row by row, in methods of several rooms: dense float64 algebra is the oracle."""

import functools
import sys

import numpy as np
import pytest
import torch

import gpx
from gpx.errors import ConfigError
from gpx.inference.neighbour_likelihood import neighbour_log_likelihood
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant
from gpx.methods.sparse.collapsed_elbo import collapsed_elbo
from gpx.methods.sparse.effective_evidence import effective_evidence
from gpx.models import CGLB, SGPR, SVGP, EffectivePrior, ExactGP, Vecchia
from gpx.objectives import (
    CollapsedELBO,
    EffectiveEvidence,
    ExactMLL,
    LeaveOneOut,
    VecchiaMLL,
)
from gpx.runs import resume

N, M = 40, 7
DRAW = torch.Generator().manual_seed(3)
X = torch.rand(N, 2, generator=DRAW, dtype=torch.float64) * 4.0
Y = torch.sin(2.0 * X[:, 0]) * X[:, 1] + 0.2 * torch.randn(N, generator=DRAW, dtype=torch.float64)
Z = X[:M] + 0.05
NEW = torch.rand(9, 2, generator=DRAW, dtype=torch.float64) * 4.0
KNOWN = RowNoise(
    torch.rand(N, generator=DRAW, dtype=torch.float64) * 0.5,
    1.0 / (1.0 + torch.rand(N, generator=DRAW, dtype=torch.float64)),
)


def parts():
    return {
        "kernel": RBF(2, [0.8, 1.3], 1.7).double(),
        "mean": Constant(0.3).double(),
        "likelihood": Gaussian(0.11).double(),
    }


def dense_log_density(covariance, residual):
    law = torch.distributions.MultivariateNormal(torch.zeros_like(residual), covariance)
    return law.log_prob(residual)


def nystrom(kernel, z, x):
    cross = kernel.evaluate(z, x)
    return cross.mT @ torch.linalg.solve(kernel.evaluate(z), cross)


def dense_evidence(name, model, noise):
    """As the definitions say it, differentiable."""
    kernel, z = model.kernel, getattr(model, "inducing_points", None)
    residual = Y - model.mean(X)
    low = nystrom(kernel, z, X)
    gap = kernel.diagonal(X) - low.diagonal()
    if name == "sgpr":
        return dense_log_density(low + noise.diag(), residual) - 0.5 * (gap / noise).sum()
    extra = gap if name in ("fitc", "fic") else torch.zeros_like(gap)
    return dense_log_density(low + (noise + extra).diag(), residual)


def sparse(name):
    if name == "sgpr":
        model = SGPR(**parts(), num_inputs=2, num_inducing=M).double()
    else:
        model = EffectivePrior(
            **parts(), num_inputs=2, num_inducing=M, prior=name, learn_inducing=True
        ).double()
    model.place(Z)
    return model


PRIORS = ("sgpr", "sor", "dtc", "fitc", "fic")


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("block", [2**22, 500])
def test_evidence_and_gradient_are_those_of_the_dense_definition(name, block, monkeypatch):
    monkeypatch.setitem(gpx.inference.nystrom.BLOCK_BYTES, "cpu", block)
    model, other = sparse(name), sparse(name)
    model.know_noise(KNOWN)
    objective = CollapsedELBO() if name == "sgpr" else EffectiveEvidence()
    found = objective.evidence(model, X, Y).value
    want = dense_evidence(name, other, KNOWN.variance(other.likelihood.noise_variance))
    torch.testing.assert_close(found, want, rtol=1e-10, atol=0)
    found.backward()
    want.backward()
    for (place, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            ours.grad, theirs.grad, rtol=1e-8, atol=1e-8, msg=lambda text, at=place: f"{at}: {text}"
        )


@pytest.mark.parametrize("structure", ["sgpr", "none", "diagonal"])
def test_the_gradient_reaches_the_noise_of_every_row(structure):
    kernel = RBF(2, [0.8, 1.3], 1.7).double()
    residual = Y.clone().requires_grad_()
    noise = KNOWN.variance(torch.tensor(0.1).double()).requires_grad_()

    def value(residual, noise):
        if structure == "sgpr":
            terms, gradient, _ = collapsed_elbo(kernel, X, Z, residual, noise, gradient=True)
        else:
            terms, gradient, _ = effective_evidence(
                kernel, X, Z, residual, noise, structure, gradient=True
            )
        return gradient.attached(terms.total(), residual, noise)

    assert torch.autograd.gradcheck(value, (residual, noise), atol=1e-6)


def test_rows_on_inducing_points_keep_the_gradient_consistent():
    """Points whose unexplained variance is clamped at zero are constants."""
    kernel = RBF(2, [0.8, 1.3], 1.7).double()
    noise = KNOWN.variance(torch.tensor(0.1).double()).requires_grad_()
    step = 1e-6 * torch.randn(N, generator=DRAW, dtype=torch.float64)

    def value(noise):
        terms, gradient, _ = collapsed_elbo(kernel, X, X[:M], Y, noise, gradient=True)
        return terms.total(), gradient

    slope = value(noise)[1].noise @ step
    difference = (value(noise + step)[0] - value(noise - step)[0]) / 2.0
    torch.testing.assert_close(slope, difference.detach(), rtol=1e-6, atol=0)


def test_equal_noise_is_that_of_all_rows():
    plain, each = sparse("sgpr"), sparse("sgpr")
    each.know_noise(RowNoise(torch.zeros(N).double(), torch.ones(N).double()))
    for model in (plain, each):
        model.evidence = CollapsedELBO().evidence(model, X, Y).value
    torch.testing.assert_close(each.evidence, plain.evidence, rtol=1e-12, atol=0)
    found, want = (model.condition(X, Y).predict(NEW) for model in (each, plain))
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["sgpr", "dtc", "fitc"])
def test_predictions_are_those_of_the_dense_posterior(name):
    model = sparse(name)
    model.know_noise(KNOWN)
    with torch.no_grad():
        found = model.condition(X, Y).predict(NEW)
        noise = KNOWN.variance(model.likelihood.noise_variance)
        kernel, residual = model.kernel, Y - model.mean(X)
        low = nystrom(kernel, Z, X)
        extra = kernel.diagonal(X) - low.diagonal() if name == "fitc" else 0.0
        solved = torch.linalg.inv(low + (noise + extra).diag())
        cross = kernel.evaluate(NEW, Z) @ torch.linalg.solve(
            kernel.evaluate(Z), kernel.evaluate(Z, X)
        )
        mean = model.mean(NEW) + cross @ solved @ residual
        variance = kernel.diagonal(NEW) - ((cross @ solved) * cross).sum(1)
    torch.testing.assert_close(found.mean, mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance, variance, rtol=1e-8, atol=1e-8)


def svgp():
    model = SVGP(**parts(), num_inputs=2, num_inducing=M).double()
    model.place(Z)
    return model


MADE = {
    "exact": (lambda: ExactGP(**parts(), solver="cholesky"), ExactMLL),
    "leave one out": (lambda: ExactGP(**parts(), solver="cholesky"), LeaveOneOut),
    "sgpr": (lambda: sparse("sgpr"), CollapsedELBO),
    "fitc": (lambda: sparse("fitc"), EffectiveEvidence),
    "vecchia": (lambda: vecchia(), VecchiaMLL),
    "svgp": (svgp, None),
}


@pytest.mark.parametrize("name", MADE)
def test_other_rows_than_those_whose_noise_is_known_are_refused(name):
    make, objective = MADE[name]
    model = make()
    model.know_noise(KNOWN)
    calls = [model.condition]
    if objective is not None:
        calls.append(functools.partial(objective().evidence, model))
    else:
        calls.append(model.fit_variational)
    for call in calls:
        with pytest.raises(ConfigError, match="of each of 40 rows, but was given 30 rows"):
            call(X[10:], Y[10:])


def vecchia(**options):
    model = Vecchia(**parts(), **options).double()
    model.know_noise(KNOWN)
    model.initialise(X, Y, generator=torch.Generator())
    return model


def test_vecchia_of_all_rows_is_the_exact_process():
    model, other = vecchia(num_neighbours=N, block_size=3, prediction_neighbours=N), vecchia()
    found = VecchiaMLL().evidence(model, X, Y).value
    noise = KNOWN.variance(other.likelihood.noise_variance)
    k = other.kernel.evaluate(X) + noise.diag()
    want = dense_log_density(k, Y - other.mean(X))
    torch.testing.assert_close(found, want, rtol=1e-10, atol=0)
    found.backward()
    want.backward()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-8)
    with torch.no_grad():
        predicted = model.condition(X, Y).predict(NEW)
        cross, solved = other.kernel.evaluate(NEW, X), torch.linalg.inv(k)
        mean = other.mean(NEW) + cross @ solved @ (Y - other.mean(X))
        variance = other.kernel.diagonal(NEW) - ((cross @ solved) * cross).sum(1)
    torch.testing.assert_close(predicted.mean, mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(predicted.variance, variance, rtol=1e-8, atol=1e-8)


def test_the_noise_of_each_row_has_its_gradient_under_vecchia():
    model = vecchia(num_neighbours=5, block_size=4)
    groups = torch.cat([model.given, model.blocks], 1)
    noise = KNOWN.variance(torch.tensor(0.1).double()).requires_grad_()

    def value(noise):
        size = model.blocks.shape[1]
        return neighbour_log_likelihood(model.kernel, noise, X, Y, groups, targets=size)

    assert torch.autograd.gradcheck(value, (noise,), atol=1e-6)


QUICK = (
    *("kernel=rbf", "init=constants", "trainer.max_steps=4", "trainer.figures=false"),
    *("trainer.tensorboard=false", "trainer.device=cpu", "trainer.baselines=false"),
)
RUNS = {
    "sgpr": ("approx=sgpr", "approx.num_inducing=8"),
    "fitc": ("approx=fitc", "approx.num_inducing=8"),
    "vecchia": ("approx=vecchia", "approx.num_neighbours=8", "approx.block_size=4"),
    "svgp": ("approx=svgp", "approx.num_inducing=8", "trainer.batch_size=11"),
    "swsgp": ("approx=swsgp", "approx.num_inducing=12", "approx.num_neighbours=4"),
    "vnngp": ("approx=vnngp", "approx.num_neighbours=5", "trainer.batch_size=11"),
    "dkl": ("approx=dkl", "approx.num_inducing=8", "approx.pretrain_steps=3"),
    "deep_rf": ("approx=deep_rf", "approx.num_features=16", "trainer.batch_size=11"),
}


def stopped(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", RUNS)
def test_a_run_trains_predicts_and_goes_on(name, tmp_path, monkeypatch):
    x, y = X.numpy(), 20.0 + 5.0 * Y.numpy()
    noise = 25.0 * KNOWN.known.numpy()
    options = (*QUICK, *RUNS[name])
    whole = gpx.fit(x, y, *options, noise=noise, folder=tmp_path / "whole", quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["gpx.runs.run"], "finish", stopped)
        with pytest.raises(KeyboardInterrupt):
            gpx.fit(x, y, *options, noise=noise, folder=tmp_path / "part", quiet=True)
    again = resume(tmp_path / "part")
    assert again["test.rmse"] == whole.metrics["test.rmse"]
    loaded = gpx.load(tmp_path / "whole")
    np.testing.assert_array_equal(loaded.predict(NEW.numpy()), whole.predict(NEW.numpy()))
    plain = gpx.fit(x, y, *options, quiet=True, keep=False)
    assert np.abs(plain.predict(NEW.numpy()).mean - whole.predict(NEW.numpy()).mean).max() > 1e-3


def test_methods_without_row_noise_refuse_it(tmp_path):
    given = {"noise": KNOWN.known.numpy(), "quiet": True, "keep": False}
    for options, words in (
        (("approx=pic",), "prior=pic takes one noise variance|approx.prior=pic"),
        (("approx=cglb",), "CGLB has one noise variance for all rows"),
        (("inducing=auto", "approx=sgpr"), "certifies with one noise variance"),
        (("approx=exact", "objective=iterative_mll"), "IterativeMLL has one noise variance"),
        (("approx=committee",), "has one noise variance for all rows"),
        (("approx=ski",), "or take approx=exact .*, svgp, vecchia, sgpr, fitc or sod$"),
    ):
        with pytest.raises(ConfigError, match=words):
            gpx.fit(X.numpy(), Y.numpy(), *QUICK, *options, **given)


def test_cglb_does_not_inherit_it():
    model = CGLB(**parts(), num_inputs=2, num_data=N, num_inducing=M)
    with pytest.raises(ConfigError, match="CGLB has one noise variance"):
        model.know_noise(KNOWN)


CLASSES = (X[:, 0] + 0.2 * torch.randn(N, generator=DRAW, dtype=torch.float64) > 2.0).long().numpy()


@pytest.mark.parametrize("options", [("approx=svgp", "approx.num_inducing=8"), ("approx=auto",)])
def test_rows_of_classes_have_weights(options, tmp_path):
    """Whole weights are repeated rows, in a run too: all rows in a batch, and Z on the same."""
    weights = np.arange(N) % 3 + 1
    held = (X[:4].numpy(), CLASSES[:4])
    given = {"test": held, "quiet": True, "likelihood": "bernoulli"}
    options = (*QUICK, *options, "trainer.batch_size=500")
    fitted = gpx.fit(
        X.numpy(), CLASSES, *options, weights=weights, folder=tmp_path / "weighed", **given
    )
    assert type(fitted.model.posterior).__name__ == "SVGPPosterior"  # what auto chooses, too
    plain = gpx.fit(X.numpy(), CLASSES, *options, folder=tmp_path / "plain", **given)
    assert fitted.metrics["test.mnlp"] != plain.metrics["test.mnlp"]


def test_methods_without_row_weights_refuse_them():
    weights = {"weights": np.full(N, 2.0), "quiet": True, "keep": False}
    for options, words in (
        (
            ("approx=laplace", "likelihood=bernoulli"),
            "LaplaceGP counts every row once, and data.weights= say how many each one stands for: "
            "leave them out, or take approx=svgp, which takes weights of rows under any likelihood",
        ),
        (("approx=committee",), "counts every row once, .*or take approx=exact"),
        (
            ("approx=exact", "objective=iterative_mll"),
            "IterativeMLL counts every row once, .*or choose another objective=",
        ),
    ):
        y = CLASSES if "laplace" in options[0] else Y.numpy()
        with pytest.raises(ConfigError, match=words):
            gpx.fit(X.numpy(), y, *QUICK, *options, **weights)
