"""kernel=auto for several inputs: sums of functions of one input are recognised, and no others."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import gpx
from gpx.options.build import build
from gpx.options.config import CONFIGS
from gpx.options.kernel_expression import kernel_node, sum_of, with_terms_per_input
from gpx.runs.choosing import additive_kernels as module
from gpx.runs.choosing import kernel_choice
from gpx.runs.choosing.additive_kernels import JOINT, TRIAL, additive_kernels
from gpx.runs.choosing.kernel_choice import _for_refits
from gpx.runs.choosing.kernel_fit import Fit, score

QUICK = (
    *("trainer.figures=false", "trainer.tensorboard=false", "trainer.device=cpu"),
    *("trainer.baselines=false", "trainer.max_steps=1", "trainer.quiet=true"),
)


@pytest.fixture
def few_candidates(monkeypatch):
    """Fewer than usual, for speed."""
    monkeypatch.setattr(kernel_choice, "candidates_for", lambda *_: ("rbf", JOINT))


def choice(x, y, *options):
    """The hyperparameters of the kernel that is chosen, and the reason for it."""
    fitted = gpx.fit(x, y, "approx=exact", "kernel=auto", *QUICK, *options, keep=False)
    return fitted.model.hyperparameters, fitted.metrics["model.kernel_choice"]


def additive(rows, noise):
    draws = np.random.default_rng(0)
    x = draws.uniform(-2, 2, size=(rows, 4))
    y = np.sin(3 * x[:, 0]) + 0.5 * np.exp(-x[:, 1]) + np.tanh(2 * x[:, 2]) + 0.3 * x[:, 3]
    return x, y + noise * draws.normal(size=rows)


@pytest.mark.parametrize(("rows", "noise"), [(200, 0.1), (60, 0.0)])
def test_of_a_sum_of_smooth_functions_the_smoothness_is_found(rows, noise, few_candidates):
    """Without noise the fitted sum cannot be started from, and its terms are fitted anew."""
    found, reason = choice(*additive(rows, noise))
    assert reason.startswith("kernel='rbf per input'")
    assert "matern32 per input" in reason
    assert [len(found[f"kernel.kernels.{i}.lengthscale"]) for i in range(4)] == 4 * [1]
    assert "kernel.kernels.4.lengthscale" not in found


def test_a_function_of_rotated_inputs_keeps_a_kernel_of_all_inputs(few_candidates):
    draws = np.random.default_rng(0)
    x = draws.normal(size=(200, 4))
    z = x @ np.linalg.qr(draws.normal(size=(4, 4)))[0]
    y = np.sin(1.5 * z[:, 0]) + z[:, 1] * z[:, 2] + 0.1 * draws.normal(size=200)
    _, reason = choice(x, y)
    assert reason.startswith("kernel='rbf'")
    assert "rbf per input" not in reason


def test_candidates_that_are_named_are_compared_alone():
    x, y = additive(60, 0.1)
    options = (f"kernel.candidates=['{JOINT}']", "kernel.max_evaluations=10")
    assert choice(x, y, *options)[1].startswith(f"kernel='{JOINT}'")


class Scores:
    """In place of a fitter to 100 rows: known scores, and how each fit was made."""

    max_evaluations, y = 40, torch.zeros(100)

    def __init__(self, **scores):
        self.scores, self.made = scores, []

    def hyperparameters(self, node):
        return 3

    def score(self, hyperparameters, evidence, predictive):
        return score(100, hyperparameters, evidence, predictive)

    def fit(self, name, node, likelihood):
        self.made.append((name, self.max_evaluations))
        return Fit(name, node, likelihood, 0.0, score=self.scores[name.split()[0]])


def joint_fit(first_variance=1.0):
    """A fit of the sum for two inputs with a score of -8, its config before it, and its terms."""
    unfitted = with_terms_per_input(kernel_node(JOINT, [CONFIGS]), [0, 1])
    first, *terms = unfitted["kernels"]
    terms = [{**term, "lengthscale": [2.0], "outputscale": 0.3} for term in terms]
    node = sum_of([{**first, "outputscale": first_variance}, *terms])
    found = score(100, 7, 0.0, 0.0)
    fit = Fit(JOINT, node, {"noise_variance": 0.1}, 0.0, 0.0, found, hyperparameters=7)
    return fit, unfitted, terms


def further(fitter, joint, unfitted, *others, time=lambda: True):
    """Names of further fits, where kernels of all inputs have the scores of ``others``."""
    fits = [joint, *(Fit("rbf", {}, {}, 0.0, score=each) for each in others)]
    return [fit.name for fit, _ in additive_kernels(fits, unfitted, fitter, [CONFIGS], time)]


def test_terms_that_are_behind_the_sum_after_few_evaluations_are_given_up():
    fitter, (joint, unfitted, _) = Scores(matern32=-9.0), joint_fit()
    assert further(fitter, joint, unfitted) == ["matern32 per input"]
    assert fitter.made == [("matern32 per input", TRIAL)]


def test_terms_become_smoother_while_the_score_improves():
    joint, unfitted, _ = joint_fit()
    fitter = Scores(matern32=-5.0, matern52=-4.0, rbf=-3.0)
    assert further(fitter, joint, unfitted)[1:] == ["matern52 per input", "rbf per input"]
    assert [most for _, most in fitter.made] == [TRIAL, 40, 40]
    fitter = Scores(matern32=-5.0, matern52=-6.0)
    assert further(fitter, joint, unfitted)[1:] == ["matern52 per input"]


def test_terms_that_start_anew_have_all_evaluations():
    fitter, (joint, unfitted, _) = Scores(matern32=-9.0), joint_fit()
    further(fitter, replace(joint, node=unfitted), unfitted)
    assert fitter.made == [("matern32 per input", 40)]


@pytest.mark.parametrize(
    ("first_variance", "lead", "tried"), [(1.0, 6.8, True), (1.0, 7.0, False), (0.09, 7.0, True)]
)
def test_terms_are_tried_alone_if_they_could_lead_or_the_rest_is_negligible(
    first_variance, lead, tried
):
    """Three hyperparameters cost 6.9 nats of the criterion, and half of it of the score."""
    fitter, (joint, unfitted, _) = Scores(matern32=-9.0), joint_fit(first_variance)
    found = further(fitter, joint, unfitted, joint.score + lead / 2)
    assert bool(found) == tried


def test_no_terms_are_fitted_without_time_or_to_a_sum_that_failed():
    fitter, (joint, unfitted, _) = Scores(), joint_fit(0.09)
    assert not further(fitter, joint, unfitted, time=lambda: False)
    assert not further(fitter, replace(joint, score=-math.inf), unfitted)


def test_smoother_terms_start_with_the_variance_of_the_derivative():
    _, _, terms = joint_fit()
    steps = torch.tensor([[0.0, 0.0], [1e-3, 0.0]], dtype=torch.float64)

    def fall(terms):
        kernel = build(OmegaConf.create({"kernel": terms[0], "facts": {"num_inputs": 2}}), "kernel")
        matrix = kernel.double().evaluate(steps, steps).detach()
        return float(matrix[0, 0] - matrix[0, 1])

    expected = fall(terms)
    for name, factor in module.SMOOTHER.items():
        terms = module._exchanged(terms, kernel_node(name, [CONFIGS]), factor)["kernels"]
        assert [term["active_dims"] for term in terms] == [[0], [1]]
        assert fall(terms) == pytest.approx(expected, rel=2e-3)


def test_of_sums_over_the_inputs_one_is_fitted_to_more_rows():
    names = ("rbf per input", "matern52 per input", JOINT, "rbf", "matern12", "linear")
    fits = [Fit(name, {}, {}, 0.0, score=-place) for place, name in enumerate(names)]
    found = [fit.name for fit in _for_refits(fits, ["rbf", "matern12", JOINT])]
    assert found == ["rbf per input", JOINT, "rbf", "matern12"]
    asked = [fit.name for fit in _for_refits(fits, names)]
    assert asked == list(names[:4])


def test_a_kernel_of_the_users_without_a_lengthscale_is_left_in_its_sum():
    joint, unfitted, terms = joint_fit()
    bare = [{name: term[name] for name in term if name != "lengthscale"} for term in terms]
    joint = replace(joint, node=sum_of([joint.node["kernels"][0], *bare]))
    assert not further(Scores(), joint, unfitted)
