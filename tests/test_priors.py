"""Priors of hyperparameters against torch's densities, and what training makes of them."""

import math

import pytest
import torch
from torch import distributions

from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern52, Sum
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import QSGP, ExactGP
from gpx.objectives import ExactMLL
from gpx.options.composition import composed
from gpx.priors import DimensionScaled, Gamma, LogNormal, Priors
from gpx.runs import RunFolder, load, run

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
    with pytest.raises(ConfigError, match="learns no such positive hyperparameter; it has likeli"):
        priors.require(model)


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
    assert QSGP.hyperpriors is None
