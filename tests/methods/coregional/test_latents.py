"""Several latent processes, each with its own kernel and covariance between outputs."""

import copy
import sys
import warnings
from collections import Counter

import gpytorch
import pytest
import torch
from array_counts import Arrays
from claimed_cuda import claimed_cuda
from draws import draws
from targets_posteriors import (
    require_moments_of_functions,
    require_posterior,
    require_value_and_gradient,
)

from gpx.constraints import fix
from gpx.errors import ConfigError, DataError
from gpx.inference import dense_factor
from gpx.kernels import RBF, Linear, Matern32, Periodic, Polynomial
from gpx.kernels.over_axes import Coregionalisation
from gpx.likelihoods import GaussianOutputs
from gpx.means import Constant, Zero
from gpx.methods.coregional import covariance
from gpx.methods.coregional.covariance import observed_log_density
from gpx.methods.coregional.mll import complete_log_density
from gpx.methods.coregional.model import SPREADS, shares_of_latents
from gpx.methods.coregional.system import CompleteOutputs, ObservedOutputs
from gpx.models import CoregionalGP
from gpx.objectives import CoregionalMLL
from gpx.training.maximise import maximise

N, D, P = 12, 2, 3
NOISE = torch.tensor([0.1, 0.3, 0.05], dtype=torch.float64)


def problem(missing=0.0, num_latents=2, rank=None, kernel=None):
    generator = draws(1)
    x = torch.randn(N, D, generator=generator).double()
    y = torch.randn(N, P, generator=generator).double()
    y[torch.rand(N, P, generator=generator) < missing] = torch.nan
    model = CoregionalGP(
        kernel=RBF(D, lengthscale=1.3, outputscale=1.5) if kernel is None else kernel,
        mean=Constant(0.3),
        likelihood=GaussianOutputs(P),
        num_latents=num_latents,
        rank=rank,
    ).double()
    model.likelihood.noise_variance = NOISE
    for place, latent in enumerate(model.latents):
        root = latent.between.root
        root.data = torch.randn(root.shape, generator=generator).double()
        if kernel is None:
            latent.kernel.lengthscale = torch.rand(D, generator=generator).double() + 0.5 * place
    return model, x, y


def dense(model, x, y, relative_jitter=0.0):
    """Covariance (N, N) and residual (N,) of the targets that are there, and which they are."""
    noise = model.likelihood.noise_variance
    matrix = torch.kron(noise.diag(), torch.eye(len(x), dtype=x.dtype))
    for kernel, between in model.latents:
        matrix = matrix + torch.kron(between.matrix(), kernel.evaluate(x))
    residual = (y - model.mean(x)[:, None]).mT.reshape(-1)
    seen = ~residual.isnan()
    matrix = matrix[seen][:, seen]
    jitter = relative_jitter * matrix.diagonal().mean() * torch.eye(len(matrix)).to(matrix)
    return matrix + jitter, residual[seen], seen


def dense_value(model, x, y, relative_jitter=0.0):
    matrix, residual, _ = dense(model, x, y, relative_jitter)
    zeros = torch.zeros_like(residual).detach()
    return torch.distributions.MultivariateNormal(zeros, matrix).log_prob(residual)


CASES = {
    "two": {},
    "three": {"num_latents": 3},
    "of rank one": {"rank": 1},
    "three of rank two, a third missing": {"missing": 0.3, "num_latents": 3, "rank": 2},
    "a third missing": {"missing": 0.3},
    "terms of a sum": {
        "num_latents": "terms",
        "kernel": Matern32(lengthscale=0.9) + Periodic(active_dims=[0]) + Linear(D),
    },
}
BLOCKS = {"one block": 2**23, "blocks of five rows": 5 * N * 8, "rows": 1}


@pytest.mark.parametrize("size", BLOCKS)
@pytest.mark.parametrize("case", CASES)
def test_evidence_and_gradient_are_those_of_the_dense_covariance(case, size, monkeypatch):
    monkeypatch.setitem(dense_factor.BLOCK_BYTES, "cpu", BLOCKS[size])
    model, x, y = problem(**CASES[case])
    x.requires_grad_()
    found = CoregionalMLL().evidence(model, x, y)
    want = dense_value(model, x, y)
    parameters = [*model.parameters(), x]
    require_value_and_gradient(found, want, parameters, rtol=1e-11, least=1e-4)
    missing = int(y.isnan().sum())
    assert found.facts == {
        "missing_targets": missing,
        "solver": f"cholesky of {'observed' if missing else 'all'} targets",
        "jitter": 0.0,
    }


def test_the_gradient_is_that_of_finite_differences():
    model, x, y = problem(missing=0.2, rank=1)
    objective, parameters = CoregionalMLL(), list(model.parameters())
    objective.evidence(model, x, y).value.backward()
    directions = [torch.randn(p.shape, generator=draws(7)).double() for p in parameters]
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, directions, strict=True))

    def shifted(step):
        moved = copy.deepcopy(model)
        for p, d in zip(moved.parameters(), directions, strict=True):
            p.data += step * d
        return objective.evidence(moved, x, y).value.detach()

    step = 1e-5  # central differences: error of the order of step^2
    numeric = (shifted(step) - shifted(-step)) / (2.0 * step)
    torch.testing.assert_close(slope, numeric, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.* added to the noise variance")
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_gradient_follows_the_jitter(missing, monkeypatch):
    monkeypatch.setitem(sys.modules["gpx.linalg.cholesky"].LADDER, torch.float64, (1e-2,))
    model, x, y = problem(missing)
    found = CoregionalMLL().evidence(model, x, y)
    assert found.report.relative == found.facts["jitter"] == 1e-2
    want = dense_value(model, x, y, relative_jitter=1e-2)
    torch.testing.assert_close(found.value, want)
    parameters = list(model.parameters())
    slopes = torch.autograd.grad(found.value, parameters)
    for slope, right in zip(slopes, torch.autograd.grad(want, parameters), strict=True):
        torch.testing.assert_close(slope, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_posterior_is_that_of_the_dense_covariance(case):
    model, x, y = problem(**CASES[case])
    new = torch.randn(5, D, generator=draws(2)).double()
    matrix, residual, seen = dense(model, x, y)
    cross, prior = 0.0, 0.0
    for kernel, between in model.latents:
        cross = cross + torch.kron(between.matrix(), kernel.evaluate(new, x))[:, seen]
        prior = prior + torch.kron(between.matrix(), kernel.evaluate(new))
    mean = (cross @ torch.linalg.solve(matrix, residual)).view(P, 5).mT + model.mean(new)[:, None]
    covariance = prior - cross @ torch.linalg.solve(matrix, cross.mT)
    posterior = model.condition(x, y)
    require_posterior(model, posterior, new, mean, covariance, NOISE)
    assert posterior.facts()["solver"].startswith("cholesky of")
    found = posterior.predict(new)
    grown = model.condition(x[:8], y[:8]).with_observations(x[8:], y[8:], model.likelihood)
    for got, want in zip(grown.predict(new), found, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("rank", [None, 1])
def test_of_a_single_latent_both_ways_agree(rank):
    model, x, y = problem(num_latents=1, rank=rank)
    ((kernel, between),) = model.latents
    residual, noise = (y - model.mean(x)[:, None]).detach(), NOISE
    matrix = between.matrix().detach()
    terms, want = complete_log_density(kernel, x, residual, matrix, noise, gradient=True)
    others, got, _ = observed_log_density([kernel], x, residual, [matrix], noise, gradient=True)
    torch.testing.assert_close(others.total(), terms.total(), rtol=1e-13, atol=1e-12)
    for name in ("residual", "noise"):
        torch.testing.assert_close(getattr(got, name), getattr(want, name), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(got.betweens[0], want.betweens[0], rtol=1e-11, atol=1e-11)
    for slope, right in zip(got.kernels[0].gradients(), want.kernels[0].gradients(), strict=True):
        torch.testing.assert_close(slope, right, rtol=1e-11, atol=1e-11)
    with torch.no_grad():
        whole = CompleteOutputs(kernel, x, matrix, noise)
        listed = ObservedOutputs([kernel], [matrix], x, residual, noise)
        crosses = [kernel.evaluate(x[:4] + 0.1, x)]
        torch.testing.assert_close(listed.solve(residual), whole.solve(residual))
        torch.testing.assert_close(listed.explained(crosses), whole.explained(crosses))
        torch.testing.assert_close(
            listed.explained_jointly(crosses), whole.explained_jointly(crosses)
        )


def test_a_latent_that_no_output_has_changes_nothing():
    one, x, y = problem(num_latents=1)
    model, _, _ = problem(num_latents=2)
    model.kernel.parts[0].load_state_dict(one.kernel.state_dict())
    model.between[0].load_state_dict(one.between.state_dict())
    model.between[1].root.data.zero_()
    values = [CoregionalMLL().evidence(each, x, y).value.detach() for each in (one, model)]
    torch.testing.assert_close(values[0], values[1], rtol=1e-13, atol=1e-12)
    for got, want in zip(
        model.condition(x, y).predict(x + 0.1), one.condition(x, y).predict(x + 0.1), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


class TheirLMC(gpytorch.models.ExactGP):
    """GPyTorch's linear model of coregionalisation with the hyperparameters of ``ours``."""

    def __init__(self, ours, x, y):
        p, kernels = y.shape[1], gpytorch.kernels
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(p, has_global_noise=False)
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ZeroMean(), p)
        bases = [kernels.RBFKernel(ard_num_dims=x.shape[1]) for _ in ours.latents]
        self.covar_module = kernels.LCMKernel(bases, num_tasks=p, rank=1)
        self.double().train()
        likelihood.task_noises = ours.likelihood.noise_variance.detach()
        for part, (kernel, between) in zip(
            self.covar_module.covar_module_list, ours.latents, strict=True
        ):
            part.data_covar_module.lengthscale = kernel.lengthscale.detach()
            part.task_covar_module.var = between.own_variance.detach()
            part.task_covar_module.covar_factor.data = between.root.detach().clone()

    def forward(self, x):
        law = gpytorch.distributions.MultitaskMultivariateNormal
        return law(self.mean_module(x), self.covar_module(x))


def test_evidence_and_predictions_equal_gpytorch():
    generator = draws(5)
    x = torch.randn(40, D, generator=generator).double()
    y = torch.randn(40, P, generator=generator).double()
    model = CoregionalGP(
        kernel=RBF(D, 1.0, None),
        mean=Zero(),
        likelihood=GaussianOutputs(P),
        num_latents=2,
        rank=1,
    ).double()
    model.likelihood.noise_variance = NOISE
    for place, (kernel, between) in enumerate(model.latents):
        kernel.lengthscale = 0.7 + place
        between.root.data = torch.randn(P, 1, generator=generator).double()
        between.own_variance = 0.2 + 0.1 * place
    theirs = TheirLMC(model, x, y)
    settings = gpytorch.settings
    with (
        settings.max_cholesky_size(10**6),
        settings.fast_computations(False, False, False),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        want = theirs.likelihood(theirs(x)).log_prob(y)
        value = CoregionalMLL().evidence(model, x, y).value
        torch.testing.assert_close(value, want, rtol=1e-8, atol=0.0)
        new = torch.randn(6, D, generator=generator).double()
        law = theirs.eval()(new)
        found = model.condition(x, y).predict(new)
        torch.testing.assert_close(found.mean, law.mean.detach(), rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(found.variance, law.variance.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@torch.no_grad()
def test_sampled_functions_have_mean_and_covariance_of_the_posterior(missing):
    model, x, y = problem(missing, rank=1)
    new = torch.randn(4, D, generator=draws(2)).double()
    require_moments_of_functions(model.condition(x, y), new, within=0.1)


@pytest.mark.parametrize("num_latents", [1, 2])
@torch.no_grad()
def test_joint_draws_have_the_covariance_between_rows_and_outputs(num_latents):
    model, x, y = problem(num_latents=num_latents)
    posterior = model.condition(x, y)
    new = torch.randn(3, D, generator=draws(2)).double()
    drawn = posterior.sample(new, 20_000, generator=draws(3))
    assert drawn.shape == (20_000, 3, P)
    mean = posterior.predict(new).mean
    covariance = posterior.outputs_covariance(new)
    error = drawn - mean
    deviation = covariance.reshape(3 * P, 3 * P).diagonal().sqrt().view(3, P)
    assert (error.mean(0).abs() < 5.0 * deviation / 20_000**0.5).all()
    found = torch.einsum("kti,kuj->tiuj", error, error) / 20_000
    most = deviation[:, :, None, None] * deviation
    # five standard errors of a product of normals, sqrt(2 / 20,000) at most
    assert ((found - covariance).abs() < 0.05 * most).all()
    torch.testing.assert_close(
        torch.stack([covariance[i, :, i] for i in range(3)]), posterior.joint_outputs(new)[1]
    )


def simulated(n=70):
    """Two outputs that mix a fast and a slow function."""
    generator = draws(11)
    x = 3.0 * torch.rand(n, 1, generator=generator).double()
    functions = []
    for lengthscale in (0.15, 0.8):
        gram = RBF(lengthscale=lengthscale).double().evaluate(x).detach()
        root = torch.linalg.cholesky(gram + 1e-8 * torch.eye(n).double())
        functions.append(root @ torch.randn(n, generator=generator).double())
    mix = torch.tensor([[1.0, 0.6], [-0.4, 1.0]]).double()
    y = torch.stack(functions, 1) @ mix
    return x, y + 0.1 * torch.randn(n, 2, generator=generator).double()


def trained_evidence(**options):
    x, y = simulated()
    model = CoregionalGP(
        kernel=RBF(lengthscale=0.4), mean=Zero(), likelihood=GaussianOutputs(2, 0.05), **options
    ).double()
    model.initialise(x, y, generator=draws())
    parameters = [p for p in model.parameters() if p.requires_grad]
    search = torch.optim.LBFGS(parameters, max_iter=60, line_search_fn="strong_wolfe")

    def loss():
        search.zero_grad()
        value = -CoregionalMLL().evidence(model, x, y).value
        value.backward()
        return value

    search.step(loss)
    return float(CoregionalMLL().evidence(model, x, y).value.detach()), model


def test_two_latents_explain_data_of_two_latents_better_than_one():
    one, _ = trained_evidence()
    two, model = trained_evidence(num_latents=2)
    assert two > one + 10.0  # nats
    fast, slow = sorted(float(each.kernel.lengthscale.detach()) for each in model.latents)
    assert 0.1 < fast < 0.25 < 0.5 < slow < 1.5  # drawn with 0.15 and 0.8
    of_rank_one, _ = trained_evidence(num_latents=2, rank=1)
    assert of_rank_one > one + 10.0


def spread_from(lengths, single):
    """Whether lengthscales are, in equal ratios, between factors of one of ``SPREADS``."""
    shares = [place / (len(lengths) - 1) for place in range(len(lengths))]
    return any(
        lengths == pytest.approx([single * low ** (1.0 - t) * high**t for t in shares])
        for low, high in SPREADS
    )


def test_a_rough_process_that_a_single_kernel_takes_for_noise_is_found():
    """From lengthscales near that of the smooth one, the search ends with one process."""
    x = torch.linspace(0.0, 1.0, 100, dtype=torch.float64)[:, None]
    smooth, rough = (9.0 * x).sin(), (60.0 * x).sin()
    y = torch.cat([smooth + 0.3 * rough, 0.8 * rough - smooth], 1)
    y += 0.05 * torch.randn(y.shape, generator=draws(), dtype=torch.float64)
    parts = {"mean": Zero(), "likelihood": GaussianOutputs(2, 0.25), "num_latents": 2}
    model = CoregionalGP(kernel=RBF(lengthscale=0.2), **parts).double()
    model.initialise(x, y, generator=draws())
    assert spread_from([float(each.kernel.lengthscale.detach()) for each in model.latents], 0.2)
    objective = CoregionalMLL()
    maximise(model, lambda: objective.evidence(model, x, y).value, y.numel(), 60)
    shortest = min(float(each.kernel.lengthscale.detach()) for each in model.latents)
    assert shortest < 0.05
    assert float(model.likelihood.noise_variance.detach().max()) < 0.02


def test_latents_start_apart_and_share_the_correlations_of_the_targets():
    x, y = simulated()
    one, two = (
        CoregionalGP(
            kernel=RBF(lengthscale=0.4),
            mean=Zero(),
            likelihood=GaussianOutputs(2),
            num_latents=count,
        ).double()
        for count in (1, 2)
    )
    for model in (one, two):
        model.initialise(x, y, generator=draws())
    between = [latent.between.matrix().detach() for latent in two.latents]
    torch.testing.assert_close(sum(between), one.between.matrix().detach())
    assert (between[0] - between[1]).abs().max() > 0.05
    for matrix in between:
        assert torch.linalg.eigvalsh(matrix).min() > 0.0
    lengths = [float(latent.kernel.lengthscale.detach()) for latent in two.latents]
    assert spread_from(lengths, 0.4)


def test_copies_start_where_the_first_was_fitted():
    x, y = simulated()
    model = CoregionalGP(
        kernel=RBF() + Linear(1),
        mean=Zero(),
        likelihood=GaussianOutputs(2),
        num_latents=3,
    ).double()
    assert [type(each.kernel).__name__ for each in model.latents] == ["Sum"] * 3
    fitted = model.hyperparameters().kernel
    assert fitted is model.latents[0].kernel
    fitted.parts[0].lengthscale, fitted.parts[0].outputscale = 0.2, 0.7
    model.initialise(x, y, generator=draws())
    found = [latent.kernel.parts[0] for latent in model.latents]
    assert [float(k.outputscale.detach()) for k in found] == pytest.approx([0.7] * 3)
    lengths = [float(k.lengthscale.detach()) for k in found]
    assert spread_from(lengths, 0.2)


def test_what_is_not_trained_stays():
    x, y = simulated()
    kernel = RBF(lengthscale=0.3)
    fix(kernel, "lengthscale")
    model = CoregionalGP(
        kernel=kernel, mean=Zero(), likelihood=GaussianOutputs(2), num_latents=2, rank=1
    ).double()
    model.between[1].requires_grad_(False)
    before = model.between[1].matrix().clone()
    model.initialise(x, y, generator=draws())
    assert [float(latent.kernel.lengthscale) for latent in model.latents] == pytest.approx(
        [0.3] * 2
    )
    assert torch.equal(model.between[1].matrix(), before)


def test_only_equal_terms_are_spread():
    x, y = simulated()
    model = CoregionalGP(
        kernel=RBF(lengthscale=0.4) + Matern32(lengthscale=0.4) + RBF(lengthscale=0.4),
        mean=Zero(),
        likelihood=GaussianOutputs(2),
        num_latents="terms",
    ).double()
    assert model.hyperparameters().kernel is model.kernel
    model.initialise(x, y, generator=draws())
    lengths = [float(latent.kernel.lengthscale.detach()) for latent in model.latents]
    assert spread_from([lengths[0], lengths[2]], 0.4)
    assert lengths[1] == pytest.approx(0.4)


def test_copies_without_a_lengthscale_start_apart_by_their_covariances():
    x, y = simulated()
    model = CoregionalGP(
        kernel=Polynomial(degree=2), mean=Zero(), likelihood=GaussianOutputs(2), num_latents=2
    ).double()
    model.initialise(x, y, generator=draws())
    CoregionalMLL().evidence(model, x, y).value.backward()
    slopes = [
        torch.cat([p.grad.reshape(-1) for p in each.kernel.parameters()]) for each in model.latents
    ]
    assert (slopes[0] - slopes[1]).abs().max() > 1e-3


def test_shares_add_up():
    matrix = torch.randn(5, 5, generator=draws()).double()
    matrix = matrix @ matrix.mT + 0.1 * torch.eye(5).double()
    for count in (1, 2, 3, 7):
        found = shares_of_latents(matrix, count)
        assert len(found) == count
        torch.testing.assert_close(sum(found), matrix)
        assert all(torch.linalg.eigvalsh(each).min() > 0.0 for each in found)


def test_a_covariance_of_a_rank_starts_at_a_matrix():
    between = Coregionalisation(3, [0], rank=2).double()
    axes = torch.tensor([[1.0, 0.3], [0.5, -0.7], [-0.8, 0.2]]).double()
    matrix = axes @ axes.mT + 0.4 * torch.eye(3).double()  # of this form
    between.start_at(matrix)
    torch.testing.assert_close(between.matrix(), matrix)
    factor = between.factor()
    assert factor.shape == (3, 5)
    torch.testing.assert_close(factor @ factor.mT, matrix)
    between.start_at(matrix.diagonal().diag())
    torch.testing.assert_close(between.matrix().diagonal(), matrix.diagonal())
    for wrong in (0, 4):
        with pytest.raises(ConfigError, match=f"rank={wrong} of a covariance of 3 outputs must be"):
            Coregionalisation(3, [0], rank=wrong)


def test_invalid_setups_are_refused():
    def made(**options):
        chosen = {"kernel": RBF(), "mean": Zero(), "likelihood": GaussianOutputs(2), **options}
        return CoregionalGP(**chosen)

    for wrong in (0, -1, True, 1.5, "two"):
        with pytest.raises(ConfigError, match=f"^num_latents={wrong} must be a number of latent"):
            made(num_latents=wrong)
    with pytest.raises(ConfigError, match=r"num_latents=terms takes a sum of kernels.*got RBF"):
        made(num_latents="terms")
    with pytest.raises(ConfigError, match="rank=3 of a covariance of 2 outputs"):
        made(num_latents=2, rank=3)
    model, x, y = problem()
    for call in (model.condition, lambda a, b: CoregionalMLL().evidence(model, a, b)):
        with pytest.raises(DataError, match="every target is missing"):
            call(x, torch.full_like(y, torch.nan))
        lacking = y.clone()
        lacking[:, 1] = torch.nan
        with pytest.raises(DataError, match="output 1 of 3 has no target in any row"):
            call(x, lacking)


def test_a_covariance_beyond_memory_is_refused(monkeypatch):
    model, x, y = problem()
    monkeypatch.setattr(covariance, "cholesky_memory", lambda inputs: 2**60)
    words = r"the exact covariance of 36 targets of 3 outputs needs.*MixedOutputs"
    for call in (model.condition, lambda a, b: CoregionalMLL().evidence(model, a, b)):
        with pytest.raises(ConfigError, match=words):
            call(x, y)


def test_an_evaluation_holds_one_array_of_targets_by_targets():
    model, x, y = problem()
    with Arrays(N * P * N * P) as counted:
        CoregionalMLL().evidence(model, x, y)
    assert counted.made == Counter(new_empty=1)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_device_waits_do_not_grow_with_outputs_and_latents(missing):
    found = []
    for outputs, latents in ((2, 2), (4, 3)):
        x, y = torch.randn(8, 1, generator=draws()), torch.randn(8, outputs, generator=draws())
        y[torch.rand(8, outputs, generator=draws(1)) < missing] = torch.nan
        with claimed_cuda() as waits:
            model = CoregionalGP(
                kernel=RBF(),
                mean=Constant(),
                likelihood=GaussianOutputs(outputs),
                num_latents=latents,
            ).to("cuda")
            x, y = x.cuda(), y.cuda()
            waits.clear()
            CoregionalMLL().evidence(model, x, y)
            found.append(waits.total())
    assert found[0] == found[1] <= 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_rows_the_posterior_is_the_prior(dtype):
    model, x, y = problem()
    model, x, y = model.to(dtype), x.to(dtype), y.to(dtype)
    assert float(CoregionalMLL().evidence(model, x[:0], y[:0]).value.detach()) == 0.0
    mean, variance = model.condition(x[:0], y[:0]).predict(x[:2])
    torch.testing.assert_close(mean, torch.full((2, P), 0.3, dtype=dtype))
    prior = sum(k.diagonal(x[:2])[:, None] * b.matrix().diagonal() for k, b in model.latents)
    torch.testing.assert_close(variance, prior.detach())


@pytest.mark.parametrize(("noise", "warned"), [(0.1, False), (1e-5, True)])
def test_insufficient_float32_precision_is_a_warning(noise, warned):
    model, x, y = problem()
    model.likelihood.noise_variance = torch.full((P,), noise, dtype=torch.float64)
    model.kernel.parts[1].outputscale = 30.0
    model, x, y = model.float(), x.float(), y.float()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        CoregionalMLL().evidence(model, x, y)
    assert any("float32 has too few digits" in str(w.message) for w in found) == warned
