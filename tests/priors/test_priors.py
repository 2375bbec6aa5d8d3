"""Priors of hyperparameters against torch's densities, and what training makes of them."""

import math
import pickle
import re

import pytest
import torch
from torch import distributions

from gpx.errors import CheckpointError, ConfigError, ShapeError
from gpx.kernels import RBF, AxisProduct, Categorical, Kumaraswamy, Matern52, Periodic, Sum, Warped
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import QSGP, ExactGP
from gpx.objectives import ExactMLL
from gpx.options.composition import composed
from gpx.priors import DimensionScaled, Gamma, LogNormal, Normal, Priors
from gpx.runs import RunFolder, load, run
from gpx.runs.origin import origin_of, require_same_model
from gpx.runs.watching.console import Console
from gpx.training import LBFGSB
from gpx.training.initialisation import SubsetInitialisation

QUIET = ["trainer.figures=false", "trainer.tensorboard=false", "trainer.baselines=false"]


def exact(kernel=None):
    kernel = RBF(lengthscale=[0.5, 2.0], ard_num_dims=2) if kernel is None else kernel
    return ExactGP(kernel=kernel, mean=Constant(), likelihood=Gaussian(0.1)).double()


def test_densities_are_those_of_torch():
    values = torch.tensor([1e-3, 0.2, 1.0, 7.0], dtype=torch.float64)
    normal = distributions.LogNormal(*torch.tensor([0.7, 3.0]).double().log())
    torch.testing.assert_close(LogNormal(0.7, 3.0).log_prob(values), normal.log_prob(values))
    gamma = distributions.Gamma(*torch.tensor([2.5, 1.3]).double())
    torch.testing.assert_close(Gamma(2.5, 1.3).log_prob(values), gamma.log_prob(values))


@pytest.mark.parametrize(
    "law",
    [
        distributions.Gamma(2.5, 1.3),
        distributions.LogNormal(0.7, 1.1),
        distributions.HalfNormal(2.0),
        distributions.InverseGamma(3.0, 1.0),
        distributions.StudentT(4.0, 1.0, 2.0),
        distributions.MixtureSameFamily(
            distributions.Categorical(torch.tensor([0.3, 0.7])),
            distributions.LogNormal(torch.tensor([0.0, 2.0]), 1.0),
        ),
        distributions.Gamma(torch.tensor([2.0, 5.0]), 1.0),
    ],
    ids=lambda law: type(law).__name__,
)
def test_distributions_of_torch_are_priors(law):
    model = exact()
    lengthscale = model.kernel.lengthscale.detach()
    found = Priors({"lengthscale": law}).log_prob(model)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, law.log_prob(lengthscale).double().sum(), rtol=1e-6, atol=0)
    (slope,) = torch.autograd.grad(found, [model.kernel.parametrizations.lengthscale.original])
    assert (slope != 0.0).all()


def test_distributions_of_torch_are_constant_and_can_be_pickled():
    rate = torch.ones((), requires_grad=True)
    model = exact()
    model.hyperpriors = Priors({"lengthscale": distributions.Gamma(2.0, rate)})
    model.hyperpriors.log_prob(model).backward()
    assert rate.grad is None
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again.hyperpriors.log_prob(again), model.hyperpriors.log_prob(model))


@pytest.mark.parametrize(
    "law",
    [
        distributions.Uniform(0.1, 2.0),
        distributions.Poisson(2.0),
        distributions.MultivariateNormal(torch.zeros(2), torch.eye(2)),
        distributions.Gamma,
    ],
    ids=str,
)
def test_other_distributions_are_refused_in_a_sentence(law):
    with pytest.raises(ConfigError, match=r"prior of lengthscale is .* of torch of one"):
        Priors({"lengthscale": law})


@pytest.mark.parametrize("shape", [(3, 1), (3,), (1, 2)])
def test_a_batch_of_priors_of_another_shape_is_refused(shape):
    model = exact()
    model.hyperpriors = Priors({"lengthscale": distributions.Gamma(torch.ones(shape), 1.0)})
    said = re.escape(f"batch of {shape} priors, for a hyperparameter of shape (2,)")
    with pytest.raises(ShapeError, match=said):
        model.hyperpriors.log_prob(model)
    with pytest.raises(ShapeError, match=said):  # and before training
        LBFGSB().require_fit(model, ExactMLL(), 20, 100)


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_one_prior_for_all_entries_or_one_for_each_is_taken(shape):
    model = exact()
    model.hyperpriors = Priors({"lengthscale": distributions.Gamma(torch.ones(shape), 1.0)})
    LBFGSB().require_fit(model, ExactMLL(), 20, 100)
    # lengthscales 0.5 and 2
    assert float(model.hyperpriors.log_prob(model).detach()) == pytest.approx(-2.5)


def test_every_entry_of_every_parameter_of_a_name_counts_once():
    model = exact()
    prior = LogNormal(1.0, 2.0)
    expected = prior.log_prob(torch.tensor([0.5, 2.0], dtype=torch.float64)).sum()
    found = Priors({"lengthscale": prior}).log_prob(model)
    torch.testing.assert_close(found, expected)
    shared = RBF(lengthscale=0.5)
    model = exact(Sum([shared, shared, Matern52(lengthscale=3.0)]))
    both = prior.log_prob(torch.tensor([0.5, 3.0], dtype=torch.float64)).sum()
    torch.testing.assert_close(Priors({"lengthscale": prior}).log_prob(model), both)
    named = Priors({"kernel.kernels.2.lengthscale": prior}).log_prob(model)
    torch.testing.assert_close(named, prior.log_prob(torch.tensor(3.0, dtype=torch.float64)))


def test_what_is_fixed_has_no_prior():
    model = exact()
    model.kernel.requires_grad_(False)
    priors = Priors({"lengthscale": LogNormal(1.0, 2.0)})
    assert priors.log_prob(model) == 0.0
    with pytest.raises(ConfigError, match="learns no such hyperparameter; it has likeli"):
        priors.require(model, model.parameters())


def test_parameters_of_any_sign_take_priors_by_name():
    model = exact()
    model.mean.constant.data.fill_(-1.5)
    prior = Normal(0.5, 2.0)
    expected = distributions.Normal(0.5, 2.0).log_prob(torch.tensor(-1.5).double())
    found = Priors({"mean.constant": prior}).log_prob(model)
    torch.testing.assert_close(found, expected)
    (slope,) = torch.autograd.grad(found, model.mean.constant)
    torch.testing.assert_close(slope, torch.tensor(0.5).double().expand_as(slope))
    Priors({"mean.constant": prior}).require(model, model.parameters())


@pytest.mark.parametrize("name", ["mean.constnt", "raw_lengthscale"])
def test_the_density_of_a_name_that_the_model_lacks_is_refused(name):
    with pytest.raises(ConfigError, match=f"prior of {name}, and the model has no such hyperpar"):
        Priors({name: Normal(0.0, 1.0)}).log_prob(exact())


def test_a_loop_of_ones_own_is_told_of_a_misspelt_name():
    model, x = exact(), torch.zeros(3, 2, dtype=torch.float64)
    model.hyperpriors = Priors({"lenghtscale": LogNormal(1.0, 2.0)})
    with pytest.raises(ConfigError, match="a prior of lenghtscale, and the model has no such"):
        ExactMLL()(model, x, x[:, 0])
    model.kernel.requires_grad_(False)
    model.hyperpriors = Priors({"lengthscale": LogNormal(1.0, 2.0)})
    ExactMLL()(model, x, x[:, 0])  # fixed, but known
    model.kernel = RBF(2).double() + RBF(2, 2.0).double()
    model.hyperpriors = Priors({"lengthscale": LogNormal(1.0, 2.0), "typo": LogNormal(1.0, 2.0)})
    with pytest.raises(ConfigError, match="a prior of typo"):  # though one has two matches
        ExactMLL()(model, x, x[:, 0])


def test_the_loss_counts_them_in_and_the_evidence_does_not():
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(12, 2, generator=draws, dtype=torch.float64)
    y = torch.randn(12, generator=draws, dtype=torch.float64)
    model, objective = exact(), ExactMLL()
    evidence = objective.evidence(model, x, y).value
    model.hyperpriors = Priors({"noise_variance": Gamma(2.0, 3.0)})
    torch.testing.assert_close(objective.evidence(model, x, y).value, evidence)
    log_prior = distributions.Gamma(*torch.tensor([2.0, 3.0]).double()).log_prob(
        model.likelihood.noise_variance
    )
    torch.testing.assert_close(objective(model, x, y), -(evidence + log_prior) / 12)

    def loss(noise):
        model.likelihood.noise_variance = torch.tensor(noise, dtype=torch.float64)
        return objective(model, x, y).item()

    objective(model, x, y).backward()
    raw = model.likelihood.parametrizations.noise_variance.original
    slope = raw.grad.clone() / torch.sigmoid(raw.detach())
    step = 1e-6
    difference = (loss(0.1 + step) - loss(0.1 - step)) / (2.0 * step)
    assert float(slope) == pytest.approx(difference, rel=1e-6)


def test_few_rows_of_noise_end_near_the_prior_mode(tmp_path):
    """With two rows the evidence says next to nothing of a lengthscale, and the prior all."""
    data = tmp_path / "rows.csv"
    data.write_text("x,y\n0,0.1\n1,-0.1\n2,0.1\n3,-0.1\n")
    options = ["data=csv", f"data.path={data}", "data.test_fraction=0", "approx=exact", *QUIET]
    median, factor = 2.0, 1.05
    prior = [f"prior.parameters.lengthscale.{o}" for o in (f"median={median}", f"factor={factor}")]
    run(composed([*options, "prior=lognormal", *prior]), RunFolder(tmp_path / "run"))
    mode = median * math.exp(-(math.log(factor) ** 2))
    lengthscale = load(tmp_path / "run").posterior.kernel.lengthscale
    assert float(lengthscale) == pytest.approx(mode, rel=0.02)


def test_a_run_with_priors_is_the_best_of_its_own_loss(tmp_path):
    options = ["data=toy1d", "approx=exact", *QUIET]
    run(composed([*options, "prior=dimension_scaled"]), RunFolder(tmp_path / "prior"))
    run(composed(options), RunFolder(tmp_path / "plain"))
    found = {}
    for name in ("prior", "plain"):
        posterior = load(tmp_path / name)
        found[name] = (
            posterior.posterior.kernel.lengthscale.detach(),
            posterior.likelihood.noise_variance.detach(),
        )
    priors = DimensionScaled(1).parameters

    def density(values):
        return priors["lengthscale"].log_prob(values[0]) + priors["noise_variance"].log_prob(
            values[1]
        )

    assert float(density(found["prior"])) > float(density(found["plain"]))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LogNormal(0.0, 2.0), "median=0.0 of a log-normal prior must be positive"),
        (lambda: LogNormal(1.0, 1.0), "factor=1.0 of a log-normal prior must be above 1"),
        (lambda: LogNormal("abc", 2.0), "median=abc of a log-normal prior must be positive"),
        (lambda: LogNormal(True, 2.0), "median=True of a log-normal prior must be positive"),
        (lambda: LogNormal(1.0, "2"), "factor=2 of a log-normal prior must be above 1"),
        (lambda: Priors(3), "parameters=3 of priors: expected a prior for each name"),
        (lambda: Gamma(1.0, -1.0), "rate=-1.0 of a gamma prior must be positive"),
        (lambda: DimensionScaled(0), "num_inputs=0 must be at least 1"),
        (lambda: Priors({"lengthscale": 1.0}), "the prior of lengthscale is 1.0: expected one of"),
    ],
)
def test_mistakes_are_one_sentence(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_names_and_optimisers_that_do_not_fit_are_refused(tmp_path):
    options = ["data=toy1d", "prior=lognormal", *QUIET]
    wrong = [
        *options,
        "approx=exact",
        "+prior.parameters.lengthscales=${prior.parameters.outputscale}",
    ]
    with pytest.raises(ConfigError, match="there is a prior of lengthscales, and the model learns"):
        run(composed(wrong), RunFolder(tmp_path / "name"))
    with pytest.raises(ConfigError, match="makes steps of its own, which know no priors"):
        run(composed([*options, "approx=qsgp"]), RunFolder(tmp_path / "own"))
    with pytest.raises(ConfigError, match=r"choose dimension_scaled or lognormal or saas$"):
        composed(["data=toy1d", "approx=exact", "prior.median=3"])
    assert QSGP.hyperpriors is None


@pytest.mark.parametrize(
    ("approx", "why"),
    [
        ("local_experts", r"every expert has its own: choose approx\.hyperparameters=shared"),
        ("transductive", r"every expert has its own: choose approx\.hyperparameters=shared"),
        ("direct", "prior of lengthscale, and the model learns no such"),
        ("direct_mixture", "prior of lengthscale, and the model learns no such"),
    ],
)
def test_hyperparameters_that_training_does_not_move_take_no_priors(approx, why, tmp_path):
    """Experts have hyperparameters of their own, and approx=direct keeps those of the subset."""
    options = [f"approx={approx}", "data=toy1d", "init=constants", "prior=dimension_scaled", *QUIET]
    with pytest.raises(ConfigError, match=why):
        run(composed(options), RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_priors_for_many_inputs_serve_likelihoods_without_noise():
    model = exact()
    model.likelihood.requires_grad_(False)
    DimensionScaled(2).require(model, model.parameters())
    with pytest.raises(ConfigError, match="prior of noise_variance"):
        Priors(DimensionScaled(2).parameters).require(model, model.parameters())


def test_priors_for_many_inputs_count_those_of_each_part():
    def of(kernel):
        model = exact(kernel)
        model.likelihood.requires_grad_(False)
        return DimensionScaled(25).log_prob(model).item()

    def density(d):
        return float(DimensionScaled(d).parameters["lengthscale"].log_prob(torch.ones(1).double()))

    assert of(RBF()) == pytest.approx(density(25))
    assert of(RBF(active_dims=[3])) == pytest.approx(density(1))
    mixed = Sum([RBF(active_dims=[0, 2]) * Categorical([[1]]), RBF() * Periodic(active_dims=[0])])
    assert of(mixed) == pytest.approx(density(2) + density(25))
    # the same function, by factors of one input each
    assert (
        of(AxisProduct("rbf", 25)) == pytest.approx(of(RBF(25))) == pytest.approx(25 * density(25))
    )
    warped = Warped(RBF(), Kumaraswamy(3), active_dims=[4, 5, 6])
    assert of(warped) == pytest.approx(density(3))


def test_a_run_goes_on_with_its_own_priors_only(tmp_path):
    config = composed(["data=toy1d", "approx=exact", "prior=lognormal", *QUIET])
    state = {"origin": origin_of(config, torch.device("cpu"))}
    require_same_model(state, config, "config.yaml")
    config.prior.parameters.lengthscale.median = 9.0
    with pytest.raises(CheckpointError, match=r"prior\.parameters\.lengthscale\.median=9\.0"):
        require_same_model(state, config, "config.yaml")
    config.prior = None
    with pytest.raises(CheckpointError, match=r"lacks prior\..*, but its checkpoint was trained"):
        require_same_model(state, config, "config.yaml")
    del state["origin"]["config"]["prior"]  # of a version that had none
    require_same_model(state, config, "config.yaml")


def test_watchers_are_told_the_evidence_without_priors(tmp_path, monkeypatch):
    """What is told while training ends is what the record says of the trained model."""
    options = ["data=toy1d", "approx=exact", "prior=lognormal", *QUIET]
    told = []

    class Watcher(Console):
        def progress(self, progress, model):
            told.append(progress.evidence_per_point)

    prepared = composed([*options, "trainer.max_steps=1", "trainer.dtype=float64"])
    monkeypatch.setattr("gpx.runs.prepared_run.Console", Watcher)
    metrics = run(prepared, RunFolder(tmp_path / "run"))
    assert told == [pytest.approx(metrics["train.evidence"] / 180)]


def test_a_subset_of_several_outputs_counts_the_prior_of_their_kernel_once():
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(25, 1, generator=draws, dtype=torch.float64)
    noise = 0.3 * torch.randn(25, 2, generator=draws, dtype=torch.float64)
    y = torch.cat([x.sin(), x.cos()], 1) + noise
    kernel, priors = RBF(), Priors({"lengthscale": LogNormal(0.2, 1.1)})
    pair = [exact(kernel), exact(kernel)]
    SubsetInitialisation(max_evaluations=200)._fit(pair, x, y, priors, lambda line: None)
    evidence = sum(
        ExactMLL().evidence(model, x, target).value
        for model, target in zip(pair, y.unbind(1), strict=True)
    )
    raw = pair[0].kernel.parametrizations.lengthscale.original
    (slope,) = torch.autograd.grad((evidence + priors.log_prob(pair[0])) / 50, raw)
    assert abs(float(slope)) < 1e-3  # counted twice it is 0.07


def test_laws_of_torch_made_by_transforms_are_constant_too():
    scale = torch.tensor(2.0, requires_grad=True)
    weibull = torch.distributions.Weibull(2.0 * scale, scale)
    normal = torch.distributions.Normal(0.0, 1.0)
    shifted = torch.distributions.TransformedDistribution(
        normal, [torch.distributions.AffineTransform(scale * 1.0, scale * 3.0).inv]
    )
    value = torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True)
    for law in (weibull, shifted):
        prior = Priors({"scale": law}).parameters["scale"]
        for _ in range(2):  # a graph of the law's own could be used once
            (slope,) = torch.autograd.grad(prior.log_prob(value).sum(), value)
            assert slope.isfinite().all()
        want = law.log_prob(value.detach().float())
        torch.testing.assert_close(prior.log_prob(value).float(), want, rtol=1e-5, atol=1e-6)
    assert scale.grad is None
