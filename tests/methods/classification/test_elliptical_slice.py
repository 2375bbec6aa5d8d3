"""Chains over latents and hyperparameters, against priors, integrals and resumed chains."""

import math

import pytest
import scipy.stats
import torch
from class_problems import parts, points

from gpx.errors import CheckpointError, ConfigError, DidNotConverge, NotPositiveDefinite
from gpx.kernels import RBF, Warped
from gpx.kernels.warped import LinearWarp
from gpx.likelihoods import Bernoulli, Gamma, Gaussian, Poisson, Softmax, StudentT
from gpx.means import Constant, Zero
from gpx.methods.classification import elliptical_slice as elliptical_slice_module
from gpx.methods.classification import frame as frame_module
from gpx.methods.classification.frame import Frame, frames_of
from gpx.methods.classification.sampled_posterior import prior_factor, prior_factors
from gpx.models import ExactGP, ExpectationPropagationGP, LaplaceGP, SampledGP
from gpx.objectives import LatentLikelihood
from gpx.sampling import bulk_effective_sample_size
from gpx.training import LBFGSB, EllipticalSlice


def run(model, x, y, seed=0, **options):
    """A chain of all its steps."""
    model.initialise(x, y, generator=torch.Generator())
    chain = EllipticalSlice(**options)
    chain.check(model, len(y))
    chain.bind(model, x, seed)
    generator = torch.Generator().manual_seed(seed)
    for step in range(chain.max_steps(10**6)):
        chain.step(step, x, y, generator=generator)
    return chain


def one_point(likelihood, **options):
    model = SampledGP(
        kernel=RBF(1, 1.0, 2.0), mean=Zero(), likelihood=likelihood, **options
    ).double()
    return model, torch.zeros(1, 1).double(), torch.ones(1).double()


@pytest.mark.parametrize("around", ["posterior", "prior"])
def test_latents_of_three_points_against_their_integral(around):
    """Mean of each latent within four standard errors of the chains, variance within 20 %.

    With the source's standard errors the false-alarm rate of the means is 2e-4 for each of three.
    """
    x, y = points(3, seed=2)
    model = SampledGP(**parts(Bernoulli("probit"), 3.0), prior_deviation=0.0).double()
    chain = run(model, x, y, burn_in=30, iterations=500, thin=1, updates=2, around=around)
    kernel = model.kernel.evaluate(x).detach()
    line = torch.linspace(-7.0, 7.0, 81, dtype=torch.float64)
    f = torch.cartesian_prod(line, line, line) @ torch.linalg.cholesky(kernel).mT
    f = f + model.mean.constant.detach()
    white = torch.cartesian_prod(line, line, line).square().sum(1)
    share = (model.likelihood.log_prob(y, f).sum(1) - 0.5 * white).softmax(0)
    want = share @ f
    spread = share @ (f - want).square()
    sizes = bulk_effective_sample_size(model.latents.view(-1, 4, 3))
    assert bool((sizes > 300).all())
    errors = (spread / sizes).sqrt()
    assert bool(((model.latents.mean(0) - want).abs() < 4.0 * errors).all())
    assert bool((model.latents.var(0) / spread - 1.0).abs().max() < 0.2)
    assert chain.diagnostics()["rhat_latents"] < 1.03
    assert "rhat_hyperparameters" not in chain.diagnostics()  # which stay


@pytest.mark.parametrize(("around", "iterations"), [("posterior", 80), ("prior", 150)])
def test_hyperparameters_against_their_integral(around, iterations):
    """Outputscale of one count of 4: E log s by quadrature, within four standard errors."""
    model = SampledGP(kernel=RBF(None, 1.0, 2.0), mean=Zero(), likelihood=Poisson()).double()
    x, y = torch.zeros(1, 1).double(), torch.full((1,), 4.0).double()
    run(model, x, y, burn_in=30, iterations=iterations, thin=1, updates=1, around=around)
    logs = torch.linspace(-4.0, 6.0, 400).double() + math.log(2.0)
    white = torch.linspace(-9.0, 9.0, 801).double()
    f = (0.5 * logs).exp()[:, None] * white
    mass = model.likelihood.log_prob(y[0], f) - 0.5 * white.square()
    mass = mass - 0.5 * (logs - math.log(2.0)).square()[:, None]
    share = mass.flatten().softmax(0).view_as(mass).sum(1)
    want = float(share @ logs)
    deviation = float(share @ (logs - want).square()) ** 0.5
    found = model.samples.view(-1, 4, model.samples.shape[1])
    picks = [name for name, _ in model.kernel.named_parameters()]
    column = next(i for i, name in enumerate(picks) if "outputscale" in name)
    size = float(bulk_effective_sample_size(found)[column])
    assert size > 40
    assert abs(float(found[:, :, column].mean()) - want) < 4.0 * deviation / math.sqrt(size)


def test_hyperparameters_that_the_data_do_not_touch_follow_their_prior():
    """The lengthscale of one point: KS at 0.1 % on every chain's thinned states."""
    model, x, y = one_point(Bernoulli("probit"), prior_deviation=0.7)
    run(model, x, y, burn_in=20, iterations=150, thin=3, updates=1, around="prior")
    picks = [name for name, _ in model.kernel.named_parameters()]
    column = next(i for i, name in enumerate(picks) if "lengthscale" in name)
    law = scipy.stats.norm(float(model.centre[column]), 0.7)
    assert scipy.stats.kstest(model.samples[:, column], law.cdf).pvalue > 1e-3


def frame_of(likelihood, y, offset, factor):
    """The frame of one chain around its posterior."""
    alone = (part[None] for part in (offset, factor @ factor.mT, factor))
    frames, none = frames_of(likelihood, y, *alone, "posterior")
    assert not none
    return frames.of_chains(0)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Softmax(3)], ids=["two", "three"])
def test_the_frame_is_a_valid_change_of_coordinates(likelihood):
    """The ratio is p(y | f) N(v; 0, I) / N(v; c, (J J^T)^-1), for latents that it gives itself."""
    p = likelihood.num_latents
    x, y = points(7, classes=2 if p == 1 else 3)
    model = SampledGP(**parts(likelihood)).double()
    factor = prior_factor(model.kernel, x, 1e-6).detach()
    offset = model.mean(x).detach()
    frame = frame_of(model.likelihood, y, offset, factor)
    z = torch.randn(p, 7, generator=torch.Generator().manual_seed(0)).double()
    white = frame.white(z)
    v = frame.centre + white
    torch.testing.assert_close(frame.contrasts @ frame.contrasts.mT, torch.eye(p).double())
    f = offset + frame.contrasts.mT @ v @ factor.mT
    shaped = f[0] if p == 1 else f.mT
    torch.testing.assert_close(frame.latent(frame.colour(white)), shaped)
    normal = torch.distributions.MultivariateNormal
    precision = frame.root @ frame.root.mT
    want = model.likelihood.log_prob(y, shaped).sum()
    want += normal(torch.zeros(7).double(), torch.eye(7).double()).log_prob(v).sum()
    want -= normal(frame.centre, precision_matrix=precision).log_prob(v).sum()
    found = frame.log_ratio(model.likelihood, y, (z, white, frame.colour(white)))
    torch.testing.assert_close(found, want)
    # many chains at once are each alone
    stacked = Frame(*(torch.stack([part, part]) for part in frame))
    both = torch.stack([z, -z])
    state = (both, stacked.white(both), stacked.colour(stacked.white(both)))
    torch.testing.assert_close(stacked.log_ratio(model.likelihood, y, state)[0], found)


def test_the_frame_of_classes_leaves_their_sum_to_the_prior_and_has_the_rest_of_the_curvature():
    x, y = points(7, classes=3)
    model = SampledGP(**parts(Softmax(3))).double()
    factor = prior_factor(model.kernel, x, 1e-6).detach()
    frame = frame_of(model.likelihood, y, model.mean(x).detach(), factor)
    eye = torch.eye(7, dtype=torch.float64)
    torch.testing.assert_close(frame.root[0], eye)
    latent = frame.latent(torch.zeros_like(frame.centre))  # the mode
    curvature = torch.func.hessian(lambda f: -model.likelihood.log_prob(y[:1], f[None]).sum())
    alone = torch.stack([frame.contrasts @ curvature(f) @ frame.contrasts.mT for f in latent])
    for row in (1, 2):
        want = eye + factor.mT @ (alone[:, row, row].unsqueeze(1) * factor)
        # the centre is the mode to 0.01 standard deviations
        torch.testing.assert_close(frame.root[row] @ frame.root[row].mT, want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("case", ["moments", "counts", "no convergence"])
def test_a_frame_follows_the_posterior(case, monkeypatch):
    """c and J are those of expectation propagation where it is at hand, of Laplace's else."""
    x, y = points(5)
    likelihood = Bernoulli("probit")
    if case == "counts":
        likelihood, y = Poisson(), torch.tensor([0.0, 2.0, 1.0, 5.0, 0.0], dtype=y.dtype)
    if case == "no convergence":
        monkeypatch.setattr(frame_module, "MAX_SWEEPS", 1)
    model = SampledGP(**parts(likelihood)).double()
    factor = prior_factor(model.kernel, x, 1e-6).detach()
    frame = frame_of(model.likelihood, y, model.mean(x).detach(), factor)
    other = ExpectationPropagationGP if case == "moments" else LaplaceGP
    approximate = other(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    found = approximate.condition(x, y).predict(x)
    covariance = factor @ torch.cholesky_inverse(frame.root[0]) @ factor.mT
    # moments match to 0.05 standard deviations, and the mode is found to 0.01
    loose = case == "moments"
    torch.testing.assert_close(
        covariance.diagonal(), found.variance, rtol=2e-2 if loose else 1e-3, atol=1e-5
    )
    latent = frame.latent(torch.zeros_like(frame.centre))
    off = (latent - found.mean).abs() / found.variance.sqrt()
    assert bool((off < (0.05 if loose else 0.01)).all())


@pytest.mark.parametrize(
    "likelihood",
    [Bernoulli("probit"), Bernoulli("logit"), Poisson(), Softmax(3)],
    ids=["probit", "logit", "counts", "three"],
)
def test_frames_of_many_chains_are_those_of_each(likelihood):
    """To the bit, whatever is beside a chain: a resumed run has other chains beside it."""
    x, y = points(12, classes=3 if isinstance(likelihood, Softmax) else 2)
    y = (y + 1.0) if isinstance(likelihood, Poisson) else y
    # outputscales whose sweeps differ in number; of the last one the mode is wanted for labels
    kernels = torch.stack(
        [RBF(2, [0.8, 1.2], scale).double().evaluate(x).detach() for scale in (0.5, 4.0, 30.0, 3e4)]
    )
    factors, _ = prior_factors(kernels, 1e-6)
    offsets = torch.linspace(-0.3, 0.6, 4).double().unsqueeze(1).expand(4, 12).contiguous()
    offsets[2, 3] = torch.nan  # this chain has no frame
    likelihood = likelihood.double()

    def of(rows):
        return frames_of(likelihood, y, offsets[rows], kernels[rows], factors[rows], "posterior")

    together, missing = of([0, 1, 2, 3])
    assert list(missing) == [2]
    assert isinstance(missing[2], NotPositiveDefinite)
    for rows in ([0], [1], [3], [1, 3]):
        frames, none = of(rows)
        assert not none
        for whole, part in zip(together, frames, strict=True):
            assert torch.equal(whole[rows], part)
    alone = frame_of(likelihood, y, offsets[1], factors[1])
    for part, want in zip(together.of_chains(1), alone, strict=True):
        torch.testing.assert_close(part, want, rtol=1e-4, atol=1e-4)  # K here without its jitter


def test_a_factor_that_does_not_exist_leaves_the_others():
    x, _ = points(12)
    good = RBF(2).double().evaluate(x).detach()
    bad = good - 0.5 * torch.eye(12)
    needs_more = good.clone()
    needs_more[0, 1:] = needs_more[1:, 0] = 0.0
    needs_more[0, 0] = -2e-6 * float(good.diagonal().mean())
    factors, missing = prior_factors(torch.stack([good, bad, needs_more]), 1e-6)
    assert list(missing) == [1]
    assert isinstance(missing[1], NotPositiveDefinite)
    for row, (matrix, jitter) in {0: (good, 1e-6), 2: (needs_more, 1e-5)}.items():
        want = matrix + jitter * float(matrix.diagonal().mean()) * torch.eye(12)
        torch.testing.assert_close(factors[row] @ factors[row].mT, want)


def test_chains_mix_on_labels_that_the_inputs_separate():
    """Their frame is about the mean: the mode is far from it, and chains about that mix badly."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 20, generator=generator, dtype=torch.float64)
    y = torch.where(x[:, 0] > 0.0, 1.0, -1.0).double()
    kernel = RBF(None, 4.5, 16.0)
    model = SampledGP(
        kernel=kernel, mean=Zero(), likelihood=Bernoulli("probit"), prior_deviation=0.0
    ).double()
    facts = run(model, x, y, chains=4, burn_in=20, iterations=200, thin=2).diagnostics()
    assert facts["rhat_latents"] < 1.08  # about the mode 1.15
    assert facts["effective_samples_latents"] > 70.0  # 20


def test_going_on_from_a_checkpoint_is_the_same_chain():
    x, y = points(12)
    options = {"chains": 3, "burn_in": 6, "iterations": 8, "thin": 2}
    whole = SampledGP(**parts(Bernoulli())).double()
    run(whole, x, y, **options)
    for stop in (3, 9):
        model = SampledGP(**parts(Bernoulli())).double()
        model.initialise(x, y, generator=torch.Generator())
        first = EllipticalSlice(**options)
        first.bind(model, x, 0)
        generator = torch.Generator().manual_seed(0)
        for step in range(stop):
            first.step(step, x, y, generator=generator)
        again = EllipticalSlice(**options)
        again.load_state_dict(first.state_dict())
        other = SampledGP(**parts(Bernoulli())).double()
        other.load_state_dict(model.state_dict())
        again.bind(other, x, 0)
        for step in range(stop, 14):
            again.step(step, x, y, generator=generator)
        assert torch.equal(other.samples, whole.samples)
        assert torch.equal(other.latents, whole.latents)
        assert torch.equal(other.whitened, whole.whitened)


def test_chains_in_float32_start_as_in_float64():
    x, y = points(8)
    narrow, wide = SampledGP(**parts(Bernoulli())), SampledGP(**parts(Bernoulli())).double()
    options = {"chains": 3, "burn_in": 0, "iterations": 4, "thin": 4}
    x = x.float()
    run(narrow, x, y.float(), **options)
    run(wide, x.double(), y, **options)
    torch.testing.assert_close(narrow.samples, wide.samples, rtol=1e-3, atol=1e-3)
    assert float((narrow.samples[0] - narrow.samples[1]).abs().min()) > 0.01


def test_the_model_has_the_state_of_the_last_chain():
    x, y = points(8)
    model = SampledGP(**parts(Bernoulli())).double()
    run(model, x, y, chains=2, burn_in=2, iterations=4, thin=1)
    torch.testing.assert_close(model.latent(x), model.latents[-1])
    torch.testing.assert_close(model.place.read(), model.samples[-1])
    assert torch.autograd.gradcheck(
        lambda raw: _at(model, x, y, raw),
        model.kernel.parametrizations.lengthscale.original.detach().clone().requires_grad_(),
        eps=1e-5,
        atol=1e-6,
    )


def _at(model, x, y, raw):
    name = "kernel.parametrizations.lengthscale.original"
    module = _Latent(model)
    return torch.func.functional_call(module, {f"model.{name}": raw}, (x, y))


def test_kernels_with_matrices_have_gradients_in_float32():
    """A matrix product takes one dtype, and latents are computed in float64."""
    x, y = points(8)
    found = []
    for dtype in (torch.float32, torch.float64):
        kernel = Warped(RBF(None, 0.7, 2.0), LinearWarp(2))
        model = SampledGP(kernel=kernel, mean=Zero(), likelihood=Bernoulli()).to(dtype)
        model.initialise(x.to(dtype), y.to(dtype), generator=torch.Generator())
        model.whitened = torch.linspace(-1.0, 1.0, 8, dtype=torch.float64)
        value = LatentLikelihood().evidence(model, x.to(dtype), y.to(dtype)).value
        value.backward()
        found.append((value.detach().double(), kernel.warp.root.grad.double()))
    for narrow, wide in zip(*found, strict=True):
        torch.testing.assert_close(narrow, wide, rtol=1e-4, atol=1e-4)


class _Latent(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return LatentLikelihood().evidence(self.model, x, y).value


def test_given_its_latents_a_sample_is_a_conditional_prior():
    """The part's process is an exact GP on f with a noise of the jitter."""
    x, y = points(10)
    model = SampledGP(**parts(Bernoulli()), jitter=1e-6).double()
    run(model, x, y, chains=2, burn_in=2, iterations=3, thin=1)
    posterior = model.condition(x, y)
    new = x[:4] + 0.3
    found = posterior.components(new)
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=Gaussian(1.0, 0.0)).double()
    for number in (0, 3, 5):
        model.place.move(model.samples[number])
        exact.likelihood.noise_variance = 1e-6 * model.kernel.outputscale.detach()
        want = exact.condition(x, model.latents[number]).predict(new)
        torch.testing.assert_close(found.mean[number], want.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.variance[number], want.variance, rtol=1e-5, atol=1e-6)
    probs = posterior.predictive(new, model.likelihood).probs
    parts_of = model.likelihood.predictive(*found).probs
    torch.testing.assert_close(probs, parts_of.mean(0))


def test_chains_of_too_few_samples_are_not_said_to_disagree():
    x, y = points(12)
    model = SampledGP(**parts(Bernoulli())).double()
    chain = run(model, x, y, chains=2, burn_in=2, iterations=3, thin=1)
    with pytest.warns(UserWarning, match=r"^3 samples of each of the 2 chains are too few to say"):
        chain.final_evidence(x, y, generator=torch.Generator())


def test_facts_and_warnings():
    x, y = points(12)
    model = SampledGP(**parts(Bernoulli())).double()
    chain = run(model, x, y, chains=2, burn_in=5, iterations=12, thin=2)
    with pytest.warns(UserWarning, match=r"the 2 chains have not converged.*burn_in"):
        evidence = chain.final_evidence(x, y, generator=torch.Generator())
    assert evidence.facts["num_samples"] == 12
    assert evidence.facts["chains"] == 2
    assert {"rhat_latents", "effective_samples_hyperparameters"} <= set(evidence.facts)
    assert "above the log marginal likelihood" in evidence.facts["evidence_of"]
    short = EllipticalSlice(burn_in=100, iterations=100)
    with pytest.warns(UserWarning, match="max_steps=20 ends before the first sample"):
        last = short.max_steps(20)
    assert last == 20
    assert short.burn_in == 10
    with pytest.raises(ConfigError, match="max_steps=1 is too few"):
        short.check_limit(1)


def test_more_chains_than_memory_holds_are_refused(monkeypatch):
    monkeypatch.setattr("gpx.linalg.memory.available_memory", lambda _: 2**30)
    model = SampledGP(**parts(Bernoulli()))
    EllipticalSlice(chains=1).check(model, 3000)
    with pytest.raises(ConfigError, match=r"8 chains on 3000 training points, .* fewer chains= or"):
        EllipticalSlice(chains=8).check(model, 3000)


def test_invalid_arguments_are_refused():
    for options in ({"chains": 0}, {"thin": 5, "iterations": 4}, {"around": "mode"}):
        with pytest.raises(ConfigError):
            EllipticalSlice(**options)
    with pytest.raises(ConfigError, match="of SampledGP models, got LaplaceGP"):
        EllipticalSlice().check(LaplaceGP(**parts(Bernoulli())), 5)
    model = SampledGP(**parts(Bernoulli()))
    with pytest.raises(ConfigError, match="LBFGSB would maximise what SampledGP is to sample"):
        model.check_optimizer(LBFGSB())
    model.check_optimizer(EllipticalSlice())
    for likelihood, other in (
        (Gaussian(), r"model=ExactGP\(\) or model=SVGP"),
        (Gamma(), r"model=LaplaceGP\(\) or model=SVGP"),
        (StudentT(), "model=SVGP"),
    ):
        text = f"those of {type(likelihood).__name__.removeprefix('Parametrized')} are to be "
        with pytest.raises(ConfigError, match=f"{text}learned: take {other}"):
            LatentLikelihood().check(SampledGP(**parts(likelihood)))
    with pytest.raises(ConfigError, match="prior_deviation=-1"):
        SampledGP(kernel=RBF(1), mean=Constant(), likelihood=Bernoulli(), prior_deviation=-1.0)


def test_burn_in_that_is_ended_early_leaves_samples():
    x, y = points(12)
    model = SampledGP(**parts(Bernoulli())).double()
    model.initialise(x, y, generator=torch.Generator())
    chain = EllipticalSlice(chains=2, burn_in=1000, iterations=400, thin=4)
    chain.bind(model, x, 0)
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        chain.step(step, x, y, generator=generator)
    assert not chain.serves(6)
    said = chain.hurry(6, 1400)
    assert said == "burn-in, after 6 of 1000 steps (every step from here on is kept as a sample),"
    assert (chain.burn_in, chain.thin) == (6, 1)
    assert chain.hurry(7, 1400) == ""  # there is nothing more to end
    again = EllipticalSlice(chains=2, burn_in=1000, iterations=400, thin=4)
    again.load_state_dict(chain.state_dict())
    assert (again.burn_in, again.thin) == (6, 1)
    assert again.max_steps(10**6) == chain.max_steps(10**6) == 1400  # all that were asked for
    for step in range(6, 10):
        chain.step(step, x, y, generator=generator)
    assert chain.serves(10)
    assert len(model.samples) == 2 * 4


def test_another_run_begins_chains_of_its_own():
    x, y = points(6, seed=2)
    models = [
        SampledGP(kernel=RBF(None, 0.7, 2.0), mean=Zero(), likelihood=Bernoulli("probit")).double()
        for _ in range(2)
    ]
    for model in models:
        model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    first = EllipticalSlice(chains=2, burn_in=1, iterations=6, thin=1)
    first.bind(models[0], x, 0)
    start = first.positions.clone()
    generator = torch.Generator().manual_seed(0)
    for step in range(4):
        first.step(step, x, y, generator=generator)
    resumed = EllipticalSlice(chains=2, burn_in=1, iterations=6, thin=1)
    resumed.load_state_dict(first.state_dict())
    resumed.bind(models[0], x, 0)
    assert torch.equal(resumed.positions, first.positions)
    resumed.bind(models[1], x, 0)
    assert torch.equal(resumed.positions, start)
    assert not resumed.trace


@pytest.mark.parametrize("all_fixed", [False, True])
def test_hyperparameters_that_are_fixed_stay_where_they_are(all_fixed):
    x, y = points(6, seed=2)
    kernel = RBF(None, 0.7, 2.0)
    raw = kernel.parametrizations
    raw.lengthscale.original.requires_grad_(False)
    raw.outputscale.original.requires_grad_(not all_fixed)
    model = SampledGP(kernel=kernel, mean=Zero(), likelihood=Bernoulli("probit")).double()
    assert model.place.size == (0 if all_fixed else 1)
    run(model, x, y, burn_in=4, iterations=6, thin=1, updates=1)
    assert float(kernel.lengthscale) == pytest.approx(0.7)
    posterior = model.condition(x, y)
    kernels = [
        (float(p.kernel.lengthscale), float(p.kernel.outputscale)) for p in posterior._parts()
    ]
    lengths, scales = (set(found) for found in zip(*kernels, strict=True))
    assert len(lengths) == 1
    assert lengths.pop() == pytest.approx(0.7)
    assert all_fixed is (len(scales) == 1)
    assert bool(posterior.predict(x).variance.isfinite().all())


def test_a_checkpoint_that_sampled_a_fixed_hyperparameter_is_refused_in_words():
    x, y = points(6, seed=2)
    model = SampledGP(kernel=RBF(None, 0.7, 2.0), mean=Zero(), likelihood=Bernoulli("probit"))
    model.double().initialise(x, y, generator=torch.Generator())
    chains = EllipticalSlice(chains=2, burn_in=1, iterations=6, thin=1)
    chains.bind(model, x, 0)
    kernel = RBF(None, 0.7, 2.0)
    kernel.parametrizations.lengthscale.original.requires_grad_(False)
    fixed = SampledGP(kernel=kernel, mean=Zero(), likelihood=Bernoulli("probit")).double()
    again = EllipticalSlice(chains=2, burn_in=1, iterations=6, thin=1)
    again.load_state_dict(chains.state_dict())
    with pytest.raises(CheckpointError, match="has 2 hyperparameters and the model samples 1"):
        again.bind(fixed, x, 0)


@pytest.mark.parametrize("burn_in", [2, 4])
def test_one_chain_takes_a_short_burn_in(burn_in):
    """The later half of its steps is one draw, which has no covariance."""
    x, y = points(6)
    model = SampledGP(**parts(Bernoulli())).double()
    run(model, x, y, chains=1, burn_in=burn_in, iterations=2, thin=1)
    assert len(model.samples) == 2
    assert model.samples.isfinite().all()


@pytest.fixture
def without_wide_frames(monkeypatch):
    """No frames exist where the variance of the kernel is above a bound."""

    def bounded_by(bound):
        def some_frames(likelihood, y, offset, kernel, *rest):
            found, missing = frames_of(likelihood, y, offset, kernel, *rest)
            wide = (kernel[:, 0, 0] > bound).nonzero()[:, 0].tolist()
            return found, missing | {row: DidNotConverge("too wide") for row in wide}

        monkeypatch.setattr(elliptical_slice_module, "frames_of", some_frames)

    return bounded_by


def test_chains_that_would_start_where_no_frame_exists_start_nearer_the_centre(
    without_wide_frames,
):
    x, y = points(6)
    model = SampledGP(
        kernel=RBF(), mean=Zero(), likelihood=Bernoulli(), prior_deviation=2.0
    ).double()
    model.initialise(x, y, generator=torch.Generator())
    chain = EllipticalSlice(chains=8, burn_in=1, iterations=4)
    chain.bind(model, x, 0)
    without_wide_frames(2.0)
    chain.step(0, x, y, generator=torch.Generator())
    assert chain.frames.factor[:, 0, 0].square().max() < 2.0 * (1.0 + 1e-5)
    chain.bind(model, x, 0)
    without_wide_frames(0.5)
    with pytest.raises(DidNotConverge, match="too wide"):  # at the centre, where it is one
        chain.step(0, x, y, generator=torch.Generator())


def test_chains_that_go_on_after_they_were_cut_short_keep_about_the_samples_asked_for():
    x, y = points(6, seed=2)
    options = {"chains": 2, "burn_in": 4, "iterations": 40, "thin": 8}
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    models = [SampledGP(**parts(Bernoulli())).double() for _ in generators]
    chains = [EllipticalSlice(**options) for _ in generators]
    for model, chain, generator in zip(models, chains, generators, strict=True):
        model.initialise(x, y, generator=torch.Generator())
        chain.bind(model, x, 0)
        chain.burn_in, chain.thin = 4, 1  # as after a run of 8 steps
        if chain is chains[1]:
            chain.most_samples = math.inf
        for step in range(44):
            chain.step(step, x, y, generator=generator)
    thinned, every = models
    assert (chains[0].thin, len(chains[0].trace)) == (8, 5)
    wanted = [2 * step + chain for step in range(7, 40, 8) for chain in (0, 1)]
    for name in ("samples", "latents"):
        assert torch.equal(getattr(thinned, name), getattr(every, name)[wanted])
    fits = [chains[1].trace[step] for step in range(7, 40, 8)]
    assert torch.equal(torch.stack(chains[0].trace), torch.stack(fits))


def test_a_cut_keeps_the_samples_asked_for_and_chains_that_ask_for_few_serve():
    chains = EllipticalSlice(burn_in=100, iterations=10, thin=1)
    with pytest.warns(UserWarning, match="then every 5"):
        assert chains.max_steps(100) == 100
    assert (chains.burn_in, chains.thin) == (50, 5)
    few = EllipticalSlice(burn_in=10, iterations=8, thin=4)
    assert few.serves(10 + 4 * few.thin)
    assert few.most_samples > 4  # thinned further before that it would never serve
