"""The best q(v) of outputs that mix functions, against dense algebra and the bound's own slope."""

import pytest
import torch

from gpx.inference.variational import (
    InducingVariables,
    mean_shares,
    observed_sums,
    optimal_variational,
    per_output_sums,
)
from gpx.kernels import RBF
from gpx.likelihoods import GaussianOutputs, MixedOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant
from gpx.models import SVGP
from gpx.objectives import SVGPELBO

N, M, P = 30, 6, 3
DRAW = torch.Generator().manual_seed(4)
X = torch.randn(N, 2, generator=DRAW).double()
MIXING = torch.randn(P, P, generator=DRAW).double()
Y = torch.stack([X[:, 0].sin(), X[:, 1].cos(), X[:, 0] * X[:, 1]], 1) @ MIXING
GAPS = Y.clone()
GAPS[torch.rand(N, P, generator=DRAW) < 0.3] = float("nan")
WEIGHTS = RowNoise(torch.zeros(N).double(), 1.0 + torch.rand(N, generator=DRAW).double())


def model(latents, **options):
    likelihood = MixedOutputs(P, latents).double()
    with torch.no_grad():
        likelihood.mixing.copy_(MIXING[:, :latents])
    likelihood.noise_variance = torch.tensor([0.3, 0.01, 0.1]).double()
    made = SVGP(
        kernel=RBF(2, 1.1, 1.4),
        mean=Constant(0.7),
        likelihood=likelihood,
        num_inputs=2,
        num_inducing=M,
        **options,
    ).double()
    made.place(X[:M] + 0.1)
    return made


@pytest.mark.parametrize("latents", [2, 3])
@pytest.mark.parametrize("y", [Y, GAPS], ids=["all", "gaps"])
def test_means_and_factors_are_the_dense_ones(latents, y):
    made = model(latents)
    variables = InducingVariables(made.kernel, made.inducing, made.jitter)
    shares = mean_shares(made.likelihood)
    sums = observed_sums(variables, made.mean, X, y, None, shares)
    mean, factor = optimal_variational(sums, made.likelihood)
    with torch.no_grad():
        z = made.inducing
        root = torch.linalg.cholesky(made.kernel.evaluate(z) + 1.4e-6 * torch.eye(M).double())
        a = torch.linalg.solve_triangular(root, made.kernel.evaluate(z, X), upper=False).mT
        w, noise = made.likelihood.mixing, made.likelihood.noise_variance
        rows, outputs = (~y.isnan()).nonzero(as_tuple=True)
        # one row of the design for each target that is there: (N, q M)
        design = (w[outputs][:, :, None] * a[rows][:, None, :]).flatten(1)
        residual = y[rows, outputs] - 0.7 * w.sum(1)[outputs]
        precision = (design / noise[outputs][:, None]).mT @ design
        precision += torch.eye(latents * M).double()
        want = torch.linalg.solve(precision, design.mT @ (residual / noise[outputs]))
    torch.testing.assert_close(mean.flatten(), want, rtol=1e-4, atol=1e-5)
    for place in range(latents):
        own = slice(place * M, (place + 1) * M)
        found = factor[place] @ factor[place].mT
        torch.testing.assert_close(found, precision[own, own].inverse(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("weighed", [False, True])
def test_no_change_of_q_raises_the_bound(weighed):
    made = model(2)
    if weighed:
        made.know_noise(WEIGHTS)
    before = SVGPELBO(N).evidence(made, X, GAPS).value
    made.fit_variational(X, GAPS)
    value = SVGPELBO(N).evidence(made, X, GAPS).value
    assert value > before + 10.0
    for slope in torch.autograd.grad(value, list(made.q.parameters())):
        assert slope.abs().max() < 1e-4


def test_a_run_starts_there_and_ends_there():
    made = model(2)
    made.initialise(X, GAPS, generator=torch.Generator().manual_seed(0))
    value = SVGPELBO(N).evidence(made, X, GAPS).value
    for slope in torch.autograd.grad(value, list(made.q.parameters())):
        assert slope.abs().max() < 1e-4
    made.place(made.inducing.detach().clone())
    posterior = made.condition(X, GAPS)
    assert posterior.refitted
    made.fit_variational(X, GAPS)
    torch.testing.assert_close(posterior.predict(X), made.condition(X, GAPS).predict(X))


def test_a_noise_variance_that_is_not_trained_stays():
    made = model(2)
    made.likelihood.parametrizations.noise_variance.original.requires_grad_(False)
    before = made.likelihood.noise_variance.clone()
    made.initialise(X, torch.stack([X[:, 0].sin()] * 3, 1), generator=torch.Generator())
    assert torch.equal(made.likelihood.noise_variance, before)


def test_an_output_apart_has_a_function_of_its_own_variance():
    made = model(3)
    variables = InducingVariables(made.kernel, made.inducing, made.jitter)
    sums = observed_sums(variables, made.mean, X, GAPS)
    variance = MIXING[1].square().sum()
    scaled = RBF(2, 1.1, 1.4 * float(variance)).double()
    of_scaled = InducingVariables(scaled, made.inducing, made.jitter)
    found, want = (
        per_output_sums(sums, made.likelihood),
        observed_sums(of_scaled, made.mean, X, GAPS),
    )
    for name in ("gram", "projected", "trace_error", "squared_residual"):
        one, other = getattr(found.each[1], name), getattr(want.each[1], name)
        torch.testing.assert_close(one, other)
    assert per_output_sums(sums, GaussianOutputs(3)) is sums
    assert mean_shares(GaussianOutputs(3)) is None
