"""Noise and weights of rows in mini-batches: dense processes, enumeration and repeated rows."""

import itertools
import math

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import (
    Bernoulli,
    Gaussian,
    GaussianOutputs,
    MixedOutputs,
    Poisson,
    Softmax,
    StudentT,
)
from gpx.likelihoods import Laplace as LaplaceNoise
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant
from gpx.methods.base.batch import Batch
from gpx.models import SVGP, SWSGP, VNNGP, DeepGP, ExactGP
from gpx.objectives import SVGPELBO, VNNGPELBO, ExactMLL, SampledELBO, SWSGPObjective

N = 6
DRAW = torch.Generator().manual_seed(5)
X = torch.rand(N, 2, generator=DRAW, dtype=torch.float64) * 3.0
Y = torch.sin(2.0 * X[:, 0]) * X[:, 1]
NEW = torch.rand(7, 2, generator=DRAW, dtype=torch.float64) * 3.0
KNOWN = RowNoise(
    torch.rand(N, generator=DRAW, dtype=torch.float64) * 0.5,
    1.0 / (1.0 + torch.rand(N, generator=DRAW, dtype=torch.float64)),
)
WEIGHTS = torch.tensor([1, 3, 2, 1, 2, 1])
WEIGHTED = RowNoise(torch.zeros(N).double(), 1.0 / WEIGHTS.double())


def parts(likelihood=None):
    return {
        "kernel": RBF(2, [0.8, 1.3], 1.7).double(),
        "mean": Constant(0.3).double(),
        "likelihood": (Gaussian(0.11) if likelihood is None else likelihood).double(),
    }


def draws():
    return torch.Generator().manual_seed(1)


def svgp(likelihood=None):
    model = SVGP(**parts(likelihood), num_inputs=2, num_inducing=N, jitter=1e-10).double()
    model.place(X)
    with torch.no_grad():
        model.q.mean.normal_(generator=draws())
    return model


def swsgp(likelihood=None):
    model = SWSGP(
        **parts(likelihood), num_inputs=2, num_inducing=N, num_neighbours=3, warm_start=False
    ).double()
    model.initialise(X, Y, generator=draws())
    return model


def vnngp(likelihood=None):
    model = VNNGP(
        **parts(likelihood), num_inputs=2, num_data=N, num_neighbours=3, warm_start=False
    ).double()
    model.initialise(X, Y, generator=draws())
    return model


def deep(likelihood=None):
    chosen = parts(likelihood)
    model = DeepGP(
        kernel=chosen["kernel"],
        likelihood=chosen["likelihood"],
        num_inputs=2,
        num_features=4,
        warm_start=False,
    ).double()
    model.initialise(X, Y, generator=draws())
    mixing = torch.randn(2, model.likelihood.num_latents, generator=draws()).double()

    def of_inputs(x, num, generator=None):
        """Draws that are a function of the row alone, so that batches can be enumerated."""
        f = (x @ mixing).squeeze(-1)
        return f.expand(num, *f.shape)

    model.sample_latents = of_inputs
    return model


MADE = {
    "svgp": (svgp, SVGPELBO),
    "swsgp": (swsgp, SWSGPObjective),
    "vnngp": (vnngp, VNNGPELBO),
    "deep": (deep, SampledELBO),
}


def test_with_a_point_on_every_row_the_bound_is_the_exact_evidence():
    model, exact = svgp(), ExactGP(**parts()).double()
    for each in (model, exact):
        each.know_noise(KNOWN)
    model.fit_variational(X, Y)
    objective = SVGPELBO(N)
    want = ExactMLL().evidence(exact, X, Y).value
    found = objective.evidence(model, X, Y).value
    torch.testing.assert_close(found, want, rtol=1e-7, atol=1e-7)
    of_batches = objective.full_evidence(model, X, Y, batch_size=4).value
    torch.testing.assert_close(of_batches, found, rtol=1e-12, atol=0)
    # at the optimal q its gradient is that of the evidence, hyperparameters' too
    found.backward()
    want.backward()
    for ours, theirs in zip(
        (model.kernel.parameters(), model.likelihood.parameters()),
        (exact.kernel.parameters(), exact.likelihood.parameters()),
        strict=True,
    ):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)
    # the posterior: refitted, and of q as it is
    wanted = exact.condition(X, Y).predict(NEW)
    torch.testing.assert_close(model.condition(X, Y).predict(NEW), wanted, rtol=1e-6, atol=1e-6)
    model.refit = False
    torch.testing.assert_close(model.condition(X, Y).predict(NEW), wanted, rtol=1e-6, atol=1e-6)


def test_the_best_values_of_nearest_neighbours_know_the_noise():
    """Of the process in which every row is given all before it: the exact one."""
    model = VNNGP(**parts(), num_inputs=2, num_data=N, num_neighbours=N, jitter=1e-9).double()
    exact = ExactGP(**parts()).double()
    for each in (model, exact):
        each.know_noise(KNOWN)
    model.initialise(X, Y, generator=draws())
    model.fit_variational(X, Y)
    want = exact.condition(X, Y).predict(X)
    found = model.row_terms(torch.arange(N)).marginals
    torch.testing.assert_close(found.mean, want.mean, rtol=1e-3, atol=1e-3)
    objective = VNNGPELBO(N)
    value = objective.evidence(model, X, Y).value
    slopes = torch.autograd.grad(value, [model.q_scaled_mean, model.q_log_deviation])
    assert max(float(slope.to_dense().abs().max()) for slope in slopes) < 2e-3


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("known", [KNOWN, WEIGHTED], ids=["noise", "weights"])
def test_enumerated_batches_average_to_all_rows(name, known):
    make, kind = MADE[name]
    model, objective = make(), kind(N)
    model.know_noise(known)
    whole = objective.evidence(model, X, Y, generator=draws())
    values = []
    for rows in itertools.combinations(range(N), 2):
        batch = Batch.of(model, X, Y, torch.tensor(rows))
        values.append(objective.evidence_of(model, batch, generator=draws()))
    if name == "svgp":
        mean = torch.stack([v.value for v in values]).mean()
        torch.testing.assert_close(mean, whole.value, rtol=1e-12, atol=1e-12)
    mean = torch.stack([v.parts["fit"] for v in values]).mean()
    torch.testing.assert_close(mean, whole.parts["fit"], rtol=1e-12, atol=1e-12)


def test_draws_are_weighed():
    model = deep()
    model.know_noise(KNOWN)
    noise = KNOWN.variance(model.likelihood.noise_variance).sqrt()
    want = torch.distributions.Normal(model.sample_latents(X, 1)[0], noise).log_prob(Y).sum()
    found = SampledELBO(N).evidence(model, X, Y).parts["fit"]
    torch.testing.assert_close(found, want.detach(), rtol=1e-12, atol=0)


TARGETS = {
    "bernoulli": (Bernoulli, torch.tensor([-1.0, 1, 1, -1, 1, -1]).double()),
    "poisson": (Poisson, torch.tensor([0.0, 1, 4, 2, 0, 3]).double()),
    "softmax": (lambda: Softmax(3), torch.tensor([0.0, 1, 2, 2, 1, 0]).double()),
    "student_t": (StudentT, Y),
    "laplace": (LaplaceNoise, Y),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("kind", ["svgp", "swsgp", "deep"])
def test_whole_weights_are_repeated_rows(name, kind):
    if name == "softmax" and kind == "swsgp":
        pytest.skip("one latent function only")
    likelihood, y = TARGETS[name]
    make, objective = MADE[kind]
    weighed, plain = make(likelihood()), make(likelihood())
    plain.load_state_dict(weighed.state_dict())
    weighed.know_noise(WEIGHTED)
    again = torch.arange(N).repeat_interleave(WEIGHTS)
    found = objective(N).evidence(weighed, X, y).parts["fit"]
    want = objective(len(again)).evidence(plain, X[again], y[again]).parts["fit"]
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)
    assert abs(float(found - objective(N).evidence(plain, X, y).parts["fit"])) > 1e-3


@pytest.mark.parametrize(
    "likelihood",
    [Gaussian, lambda: GaussianOutputs(2), lambda: MixedOutputs(2)],
    ids=["one", "two", "mixed"],
)
def test_under_gaussian_noise_f_is_inferred_as_from_repeated_rows(likelihood):
    """The densities differ by what the scatter of repeated rows says of the noise alone."""
    weighed, plain = svgp(likelihood()), svgp(likelihood())
    weighed.know_noise(WEIGHTED)
    again = torch.arange(N).repeat_interleave(WEIGHTS)
    y = torch.stack([Y, X[:, 0]], 1) if weighed.num_outputs == 2 else Y
    found = SVGPELBO(N).evidence(weighed, X, y).value
    want = SVGPELBO(len(again)).evidence(plain, X[again], y[again]).value
    noise = plain.likelihood.noise_variance.view(-1)
    scatter = 0.5 * (
        (WEIGHTS - 1).sum() * (2.0 * torch.pi * noise).log().sum()
        + len(noise) * WEIGHTS.double().log().sum()
    )
    torch.testing.assert_close(found, want + scatter, rtol=1e-12, atol=1e-10)
    if not isinstance(weighed.likelihood, MixedOutputs):
        for model, rows in ((weighed, torch.arange(N)), (plain, again)):
            model.posterior = model.condition(X[rows], y[rows]).predict(NEW)
        torch.testing.assert_close(weighed.posterior, plain.posterior, rtol=1e-8, atol=1e-8)


def test_a_network_predicts_weighed_rows_by_the_mixture_over_its_draws():
    """Weights of one change nothing; others scale the noise of every part of the mixture."""
    model = DeepGP(
        kernel=RBF(2, [0.8, 1.3], 1.7),
        likelihood=Gaussian(0.11),
        num_inputs=2,
        num_features=8,
        depth=2,
        predict_samples=5,
    ).double()
    model.initialise(X, Y, generator=draws())
    posterior = model.condition(X, Y)
    ones = RowNoise(torch.zeros(len(NEW)).double(), torch.ones(len(NEW)).double())
    plain = posterior.predictive(NEW, model.likelihood)
    found = posterior.predictive_of_rows(NEW, model.likelihood, ones)
    y = torch.linspace(-1, 1, len(NEW)).double()
    torch.testing.assert_close(found.log_prob(y), plain.log_prob(y))
    assert not isinstance(found, torch.distributions.Normal)

    mean, variance = posterior.components(NEW)
    noise = torch.linspace(0.1, 0.7, len(NEW)).double()
    learned = model.likelihood.noise_variance.detach()
    known = RowNoise(noise, 2.0 * ones.relative)
    parts = torch.distributions.Normal(mean, (variance + noise + 2.0 * learned).sqrt())
    expected = parts.log_prob(y).logsumexp(0) - math.log(5)
    found = posterior.predictive_of_rows(NEW, model.likelihood, known)
    torch.testing.assert_close(found.log_prob(y), expected)


@pytest.mark.parametrize("draws_needed", [1, 5], ids=["normal", "mixture"])
@pytest.mark.parametrize("likelihood", [GaussianOutputs, MixedOutputs])
def test_a_row_of_some_weight_is_predicted_with_a_share_of_the_noise_of_every_output(
    likelihood, draws_needed
):
    """As of one output: what was trained as a mean of w rows is predicted as one."""
    if draws_needed == 1:
        model = svgp(likelihood(2))
    else:
        model = DeepGP(
            kernel=RBF(2, [0.8, 1.3], 1.7),
            likelihood=likelihood(2),
            num_inputs=2,
            num_features=8,
            depth=2,
            predict_samples=draws_needed,
        ).double()
    y = torch.stack([Y, X[:, 0]], 1)
    model.initialise(X, y, generator=draws())
    model.likelihood.noise_variance = torch.tensor([0.2, 0.7]).double()
    posterior = model.condition(X, y)
    plain = posterior.predictive(NEW, model.likelihood)
    relative = torch.linspace(0.1, 1.0, len(NEW)).double()
    known = RowNoise(torch.zeros_like(relative), relative)
    found = posterior.predictive_of_rows(NEW, model.likelihood, known)
    assert type(found) is type(plain)
    less = (1.0 - relative)[:, None] * model.likelihood.noise_variance.detach()
    torch.testing.assert_close(found.mean, plain.mean)
    torch.testing.assert_close(found.variance, plain.variance - less)
    some = y[:1].expand(len(NEW), 2)
    ones = RowNoise(torch.zeros_like(relative), torch.ones_like(relative))
    same = posterior.predictive_of_rows(NEW, model.likelihood, ones)
    torch.testing.assert_close(same.log_prob(some), plain.log_prob(some))


def test_rows_without_their_noise_are_refused():
    for make, kind in MADE.values():
        model = make()
        model.know_noise(KNOWN)
        given = {"rows": torch.arange(3)} if kind is VNNGPELBO else {}
        with pytest.raises(ConfigError, match="knows the noise or the weight of each of 6 rows"):
            kind(N).evidence(model, X[:3], Y[:3], generator=draws(), **given)


@pytest.mark.parametrize(
    ("likelihood", "said"),
    [
        (Bernoulli, "adds to that of the Gaussian likelihood"),
        (StudentT, "adds to that of the Gaussian likelihood"),
        (lambda: GaussianOutputs(2), r"several targets is taken by model=IndependentGP\(\)"),
    ],
    ids=["classes", "tails", "several targets"],
)
def test_known_noise_is_for_gaussian_noise_of_one_output(likelihood, said):
    with pytest.raises(ConfigError, match=said):
        svgp(likelihood()).know_noise(KNOWN)


def test_known_noise_is_where_the_model_is():
    before, after = svgp(), svgp().to("meta")
    before.know_noise(KNOWN)
    before.to("meta")
    after.know_noise(KNOWN)
    for model in (before, after):
        for part in model.row_noise:
            assert part.device.type == "meta"
            assert part.dtype == torch.float64
    kept = svgp()
    kept.know_noise(KNOWN)
    assert torch.equal(kept.float().double().row_noise.known, KNOWN.known)  # not rounded


def test_a_part_of_a_batch_carries_its_share():
    model = svgp()
    model.know_noise(KNOWN)
    rows = torch.tensor([4, 0, 3, 1])
    part = Batch.of(model, X, Y, rows).part(slice(1, 3))
    assert torch.equal(part.rows, torch.tensor([0, 3]))
    assert torch.equal(part.x, X[[0, 3]])
    assert torch.equal(part.y, Y[[0, 3]])
    assert torch.equal(part.noise.known, KNOWN.known[[0, 3]])
    assert torch.equal(part.noise.relative, KNOWN.relative[[0, 3]])
    assert Batch(X, Y).part(slice(2))[2:] == (None, None)
