"""kernel=auto: what is chosen is what the data were made of, and the config says it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import gpx
from gpx.calibration import held_out_rows
from gpx.errors import ConfigError, DataError, NotPositiveDefinite
from gpx.kernels import RBF, Matern12
from gpx.likelihoods import Gaussian
from gpx.linalg.processes import Processes, work_shared
from gpx.means import Constant
from gpx.models import ExactGP
from gpx.options.build import build
from gpx.options.composition import composed
from gpx.options.config import CONFIGS
from gpx.options.kernel_expression import kernel_node, sum_of
from gpx.runs.choosing import kernel_choice as module
from gpx.runs.choosing.kernel_candidates import candidates_for
from gpx.runs.choosing.kernel_choice import _Clock, _describe, _preferred
from gpx.runs.choosing.kernel_fit import Fit, KernelFitter, _forecast, with_values
from gpx.runs.choosing.series_kernels import (
    Decomposition,
    Season,
    _with_initial_noise,
    _with_one_changed,
    _with_one_more_term,
    decomposed,
)
from gpx.sampling.seeds import stream

QUICK = (
    *("trainer.figures=false", "trainer.tensorboard=false", "trainer.device=cpu"),
    *("trainer.baselines=false", "trainer.max_steps=3", "init=constants", "trainer.quiet=true"),
)


def drawn(kernel, x, noise, seed):
    """Targets from a Gaussian process."""
    kernel = kernel.double()
    covariance = kernel.evaluate(x, x).detach() + noise * torch.eye(len(x), dtype=torch.float64)
    normals = torch.randn(len(x), generator=torch.Generator().manual_seed(seed)).double()
    return (torch.linalg.cholesky(covariance) @ normals).numpy()


def chosen(x, y, *options, folder, **rows):
    fitted = gpx.fit(x, y, "approx=exact", "kernel=auto", *QUICK, *options, folder=folder, **rows)
    config = OmegaConf.load(folder / "config.yaml")
    return fitted, config


@pytest.mark.parametrize(("truth", "expected"), [(RBF, "RBF"), (Matern12, "Matern12")])
def test_smooth_and_rough_functions_are_told_apart(truth, expected, tmp_path):
    x = torch.rand(200, 2, generator=torch.Generator().manual_seed(0)).double() * 4
    y = drawn(truth(lengthscale=1.0), x, 1e-3, 1)
    _, config = chosen(
        x.numpy(), y, "kernel.candidates=[rbf,matern12]", "kernel.num_points=150", folder=tmp_path
    )
    assert config.kernel["_target_"] == f"gpx.kernels.{expected}"
    assert "choose" not in config.kernel
    assert config.facts.kernel_choice.startswith(f"kernel='{expected.lower()}")


def test_a_fast_smooth_function_is_not_left_to_rough_kernels(tmp_path):
    x = 3.5 * torch.rand(200, 2, generator=torch.Generator().manual_seed(0)).double().numpy()
    y = np.sin(8.0 * x).prod(1) + 0.02 * np.random.default_rng(0).normal(size=200)
    fitted, config = chosen(x, y, "kernel.candidates=[rbf,matern12]", folder=tmp_path)
    assert config.kernel["_target_"] == "gpx.kernels.RBF"  # from one of 1.0 all is noise
    assert fitted.model.hyperparameters["kernel.lengthscale"].max() < 0.3


def test_kernels_of_noise_are_fitted_again_for_two_of_them_only():
    draws = torch.Generator().manual_seed(0)
    x, y = torch.rand(60, 2, generator=draws), torch.randn(60, generator=draws)
    config = composed(["data=toy1d", "approx=exact"])
    fitter = KernelFitter(config, x.double(), y.double(), x.double(), 20)
    fits, maximise = [], fitter._maximise
    fitter._maximise = lambda parts: fits.append(parts) or maximise(parts)
    node = {"_target_": "gpx.kernels.RBF"}
    found = [fitter.fit(f"{number}", node) for number in range(3)]
    assert len(fits) == 3 + 3 + 1
    assert len({fit.evidence for fit in found}) == 1  # that of the first fit


def fast_fitter():
    """A fitter for 120 rows of a function that is noise to unit lengthscales."""
    x = 3.5 * torch.rand(120, 2, generator=torch.Generator().manual_seed(0)).double()
    y = torch.sin(8.0 * x).prod(1)
    config = composed(["data=toy1d", "approx=exact"])
    return KernelFitter(config, x, (y - y.mean()) / y.std(), x, 60)


def test_kernels_without_lengthscales_use_up_no_further_fits():
    fitter = fast_fitter()
    for _ in range(2):
        fitter.fit("linear", {"_target_": "gpx.kernels.Linear", "ard_num_dims": 2})
    found = fitter.fit("rbf", {"_target_": "gpx.kernels.RBF"})
    assert found.evidence > -1.3  # -1.41: all is noise


def test_a_further_fit_that_fails_leaves_the_first():
    fitter = fast_fitter()
    maximise = fitter._maximise

    def fail(parts):
        if parts.kernel.lengthscale.item() < 0.9:
            raise NotPositiveDefinite("not positive definite")
        return maximise(parts)

    fitter._maximise = fail
    assert math.isfinite(fitter.fit("rbf", {"_target_": "gpx.kernels.RBF"}).evidence)


def test_kernels_are_compared_with_the_noise_of_rows_that_is_known(tmp_path):
    x = torch.rand(150, 2, generator=torch.Generator().manual_seed(0)).double() * 3
    known = 4.0 * (np.arange(150) % 2)
    y = drawn(RBF(lengthscale=1.0), x, 1e-2, 2)
    y = y + known**0.5 * np.random.default_rng(1).normal(size=150)
    options = ("kernel.candidates=[rbf]", "kernel.num_points=150")
    _, config = chosen(x.numpy(), y, *options, folder=tmp_path, noise=known)
    in_targets = config.likelihood.noise_variance * y.var()
    assert 0.003 < in_targets < 0.03  # 2 and more if all rows are alike


def test_one_lengthscale_serves_where_all_inputs_matter_alike(tmp_path):
    x = torch.rand(120, 6, generator=torch.Generator().manual_seed(0)).double() * 3
    y = drawn(RBF(lengthscale=2.0), x, 1e-2, 2)
    _, config = chosen(x.numpy(), y, "kernel.candidates=[rbf]", folder=tmp_path)
    assert config.kernel.ard_num_dims is None


def test_a_plane_under_much_noise_is_taken_for_one(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(160, 10))
    y = x @ generator.normal(size=10) * 0.3 + generator.normal(size=160)
    _, config = chosen(x, y, folder=tmp_path)
    assert config.kernel._target_ == "gpx.kernels.Linear"
    assert config.kernel.ard_num_dims is None


@pytest.mark.parametrize(
    "options",
    [
        ("approx=exact", "prior=lognormal"),  # of lengthscales, which a plane has not
        ("approx=ssgp", "approx.num_basis=20"),  # takes RBF and Matern kernels alone
        ("approx=qsgp", "approx.num_basis=64"),
    ],
)
def test_kernels_that_the_run_cannot_take_are_not_compared(options, tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(120, 4))
    y = x @ generator.normal(size=4) * 0.3 + generator.normal(size=120)
    gpx.fit(x, y, "kernel=auto", *QUICK, *options, folder=tmp_path)
    config = OmegaConf.load(tmp_path / "config.yaml")
    assert config.kernel._target_ != "gpx.kernels.Linear"


@pytest.mark.filterwarnings("ignore:the kernel matrix of 150 training points")
def test_targets_of_which_many_are_zero(tmp_path):
    """Rows without income in one year have none in the next, which a density rewards at will."""
    generator = np.random.default_rng(1)
    before, skill = generator.exponential(size=(200, 2)), generator.normal(size=(200, 4))
    before[generator.uniform(size=200) < 0.4] = 0.0
    y = np.where(before[:, 0] == 0.0, 0.0, before.sum(1) + 0.8 * generator.normal(size=200)).clip(0)
    x = np.column_stack([before, skill])
    fitted, _ = chosen(x[:150], y[:150], folder=tmp_path, test=(x[150:], y[150:]))
    rows = np.column_stack([x, np.ones(200)])
    plane = rows @ np.linalg.lstsq(rows[:150], y[:150], rcond=None)[0]
    linear = np.sqrt(np.mean((plane - y)[150:] ** 2))
    assert fitted.metrics["test.rmse_original"] < 1.1 * linear


def test_a_season_is_found_and_kept_through_resume_and_prediction(tmp_path):
    time = np.linspace(0, 20, 180)
    y = 0.3 * time + np.sin(2 * np.pi * time) + 0.05 * np.random.default_rng(0).normal(size=180)
    fitted, config = chosen(
        *(time, y, "kernel.candidates=[rbf]", "kernel.rounds=2", "kernel.num_points=80"),
        *("kernel.max_evaluations=20",),
        folder=tmp_path / "run",
    )
    text = json.dumps(OmegaConf.to_container(config.kernel))
    assert "gpx.kernels.Periodic" in text
    assert "periodic" in fitted.metrics["model.kernel_choice"]
    beyond = np.array([[20.25], [20.75]])  # a crest and a trough that no row has seen
    mean, *_ = gpx.load(tmp_path / "run").predict(beyond)
    assert mean[0] - mean[1] > 1.5
    assert config.likelihood.noise_variance < 0.01


def test_classes_are_compared_by_laplace(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(80, 2))
    y = (np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=80) > 0).astype(float)
    fitted = gpx.fit(
        x,
        y,
        *("approx=laplace", "kernel=auto", "kernel.candidates=[rbf,matern32]"),
        *(option for option in QUICK if not option.startswith("init")),
        "kernel.max_evaluations=5",
        folder=tmp_path / "run",
    )
    assert "chosen by kernel=auto" in fitted.metrics["model.kernel_choice"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("+kernel.lengthscale=2", "kernel=auto chooses the kernel: name one"),
        ("kernel.candidates=[]", "expected a list of kernels"),
        ("kernel.candidates=[rbff]", "there is no kernel rbff; did you mean rbf"),
        (
            "kernel.candidates=['rbf + (rbf*rbf) per input']",
            "'per input' follows one kernel",
        ),
        ("kernel.num_points=1", "kernel.num_points=1: expected a whole number above 1"),
        ("kernel.rounds=-1", "kernel.rounds=-1: expected a whole number"),
        ("kernel.rounds=true", "kernel.rounds=true: expected a whole number"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(option, message, tmp_path):
    x = np.linspace(0, 1, 30)
    options = ["approx=svgp", "kernel=auto", option, *QUICK]
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        gpx.fit(x, x, *options, folder=tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_fit_all_but_free_of_noise_is_no_start(tmp_path):
    """1,000 rows of a smooth function: the noise of 300 of them leaves no Cholesky factor."""
    x = np.random.default_rng(0).uniform(-1, 1, size=(1200, 2))
    y = np.sin(x[:, 0]) + x[:, 1] ** 2
    _, config = chosen(x, y, "kernel.candidates=[rbf]", folder=tmp_path)
    assert config.kernel.lengthscale == 1.0
    assert config.likelihood.noise_variance == 0.1


def test_one_lengthscale_that_has_no_fitted_start_keeps_the_initialisation(tmp_path, monkeypatch):
    """It starts at initial values, from which init=subset is to fit it."""
    monkeypatch.setattr(module.KernelFitter, "_can_start_from", lambda *_: False)
    x = torch.rand(60, 2, generator=torch.Generator().manual_seed(0)).double() * 4
    y = drawn(RBF(lengthscale=1.0), x, 1e-2, 1)
    options = ("kernel.candidates=[rbf]", "init=subset", "init.max_evaluations=2")
    _, config = chosen(x.numpy(), y, *options, folder=tmp_path)
    assert config.kernel.ard_num_dims is None
    assert config.init["_target_"] == "gpx.training.SubsetInitialisation"


def test_rows_held_out_to_calibrate_on_have_no_part_in_it(tmp_path):
    """Their targets are exchanged among themselves, which leaves the standardisation as it is."""
    x = torch.rand(90, 2, generator=torch.Generator().manual_seed(0)).double() * 4
    y = drawn(RBF(lengthscale=1.0), x, 1e-2, 1)
    held_out = held_out_rows(len(y), 0.3, stream(0, "calibration")).numpy()
    exchanged = y.copy()
    exchanged[held_out] = y[held_out][::-1]
    options = ("calibrate=variance", "calibrate.fraction=0.3", "data.test_fraction=0")
    found = [
        chosen(x.numpy(), each, *options, "kernel.candidates=[rbf]", folder=tmp_path / name)[1]
        for name, each in (("one", y), ("other", exchanged))
    ]
    assert found[0].facts.num_train == 63
    assert "63 rows" in found[0].facts.kernel_choice
    assert found[0].kernel.lengthscale == pytest.approx(found[1].kernel.lengthscale, rel=1e-6)


def test_a_folder_of_the_user_has_candidates(train_py, tmp_path):
    (tmp_path / "own" / "kernel").mkdir(parents=True)
    (tmp_path / "own" / "kernel" / "mine.yaml").write_text(
        "_target_: gpx.kernels.RBF\nard_num_dims: ${facts.num_inputs}\nlengthscale: 0.5\n"
    )
    options = ("--config-dir", "own", "data=toy1d", "kernel.candidates=[matern12,mine]", *QUICK)
    status, text = train_py(*options, "kernel.rounds=0", "hydra.run.dir=run")
    assert status == 0, text
    config = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert config.facts.kernel_choice.startswith("kernel='mine', chosen by kernel=auto")
    assert not text  # trainer.quiet=true
    loud = [option for option in QUICK if not option.startswith("trainer.quiet")]
    few = ("data=toy1d", "data.num_points=30", "kernel.candidates=[rbf]", "kernel.rounds=0")
    status, text = train_py(*few, *loud, "hydra.run.dir=loud")
    data, compared, chosen = text.splitlines()[:3]
    assert data == "data toy1d split 0: 27 training and 3 test rows, 1 input (x), target y"
    assert compared == "kernel=auto: comparing on 27 rows: rbf"
    assert chosen.startswith("kernel='rbf', chosen by kernel=auto on 27 rows: evidence/point ")
    assert text.count("27 training and 3 test rows") == 1
    status, text = train_py("data=toy1d", "kernel.candidates=[mine]", *QUICK)
    assert "there is no kernel mine" in text


def test_without_an_evidence_to_compare_a_kernel_is_taken_and_said(tmp_path):
    x = np.linspace(0, 1, 30)
    options = ["approx=svgp", "kernel=auto", "likelihood=student_t", *QUICK]
    fitted = gpx.fit(x, x, *options, folder=tmp_path / "run")
    assert (
        "Laplace's approximation takes no StudentT likelihood, and bounds are too slow"
        in fitted.metrics["model.kernel_choice"]
    )


def test_few_rows_do_not_compare_kernels(tmp_path):
    x = np.random.default_rng(0).normal(size=(9, 30))
    fitted, config = chosen(x, x[:, 0], "data.test_fraction=0", folder=tmp_path / "run")
    assert "9 rows are too few to compare kernels" in fitted.metrics["model.kernel_choice"]
    assert config.kernel["_target_"] == "gpx.kernels.Matern52"


def test_a_sum_over_the_inputs_is_found(tmp_path):
    """Of an additive function, whose parts no kernel of all inputs can tell."""
    x = torch.rand(90, 5, generator=torch.Generator().manual_seed(0)).double() * 6
    y = torch.sin(2 * x).sum(1).numpy()
    options = ("kernel.candidates=[rbf,'rbf per input']", "kernel.max_evaluations=15")
    _, config = chosen(x.numpy(), y, *options, folder=tmp_path)
    assert config.kernel["_target_"] == "gpx.kernels.Sum"
    assert [list(term.active_dims) for term in config.kernel.kernels] == [[i] for i in range(5)]


def test_the_best_are_fitted_again_to_more_rows(tmp_path):
    x = torch.rand(120, 2, generator=torch.Generator().manual_seed(0)).double() * 4
    y = drawn(Matern12(lengthscale=1.0), x, 1e-2, 1)
    options = ("kernel.candidates=[rbf,matern12]", "kernel.num_points=40", "init=subset")
    _, config = chosen(x.numpy(), y, *options, folder=tmp_path)
    assert "108 rows" in config.facts.kernel_choice
    assert config.kernel["_target_"] == "gpx.kernels.Matern12"
    # what init=subset would have fitted once more
    assert config.init["_target_"] == "gpx.training.ConstantInitialisation"


@pytest.mark.parametrize(("lead", "expected"), [(2.9, "simple"), (3.1, "rich")])
def test_more_parameters_have_to_lead(lead, expected, tmp_path, monkeypatch):
    names = {"rbf": "simple", "matern12": "rich"}

    def fit(fitter, name, node, likelihood=None):
        rich = names.get(name) == "rich"
        counts = {"score": lead if rich else 0.0, "hyperparameters": 7 if rich else 3}
        ends = {"score": -99.0} if name not in names else counts
        return Fit(name, node, fitter.start, 0.0, **ends)

    monkeypatch.setattr(KernelFitter, "fit", fit)
    x = np.random.default_rng(0).normal(size=(30, 2))
    _, config = chosen(x, x[:, 0], "kernel.candidates=[rbf,matern12]", folder=tmp_path)
    assert names[config.facts.kernel_choice.split("'")[1]] == expected


def test_a_budget_leaves_kernels_untried_and_says_so(tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 2))
    options = ("kernel.candidates=[rbf,matern12,matern32]", "trainer.budget=1e-6")
    fitted, config = chosen(x, x[:, 0], *options, folder=tmp_path / "run")
    assert config.kernel["_target_"] == "gpx.kernels.RBF"
    assert (
        "trainer.budget left no time to compare 2 kernels" in fitted.metrics["model.kernel_choice"]
    )


def test_candidates_follow_inputs_and_rows():
    assert "matern32 + matern32 per input" in candidates_for(900, 8)
    assert "rbf + linear" not in candidates_for(9000, 8)
    assert not any("per input" in name for name in candidates_for(900, 30))
    assert not any("+" in name for name in candidates_for(900, 1))
    assert "linear(ard_num_dims=null)" in candidates_for(900, 8)
    assert "linear(ard_num_dims=null)" not in candidates_for(900, 8, plane=False)


def test_a_target_transform_is_seen_through(tmp_path):
    """exp of a smooth function: the kernel is fitted to its logarithm."""
    x = np.linspace(0, 3, 60)
    y = np.exp(4 * np.sin(2 * x))
    _, config = chosen(
        *(x, y, "data.target_transform=log", "kernel.candidates=[rbf]", "kernel.rounds=0"),
        folder=tmp_path / "run",
    )
    plain = chosen(
        *(x, np.log(y), "kernel.candidates=[rbf]", "kernel.rounds=0"), folder=tmp_path / "plain"
    )[1]
    assert config.kernel.lengthscale == pytest.approx(plain.kernel.lengthscale, rel=0.05)


def test_periods_of_an_uneven_series():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(np.sort(rng.uniform(0, 10, 400)))
    y = x**2 + torch.sin(2 * torch.pi * x / 0.37) + 0.5 * torch.sin(2 * torch.pi * x / 1.3)
    first, second = decomposed(x, y + 0.1 * torch.from_numpy(rng.normal(size=400))).seasons
    assert first.period == pytest.approx(0.37, rel=0.002)
    assert first.variance == pytest.approx(0.5, rel=0.1)
    assert second.period == pytest.approx(1.3, rel=0.1)
    assert second.variance == pytest.approx(0.125, rel=0.2)
    assert decomposed(x[:5], y[:5]).seasons == ()
    assert decomposed(x, torch.zeros_like(x)).seasons == ()


def test_what_trend_and_seasons_leave_is_the_rest():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.uniform(0, 10, 400))
    y = 3 * x**3 - x + torch.cos(2 * torch.pi * x) + torch.sin(4 * torch.pi * x)
    noise = 0.2 * torch.from_numpy(rng.normal(size=400))
    assert 0.03 < decomposed(x, y + noise).rest < 0.06  # of the seasons' 1, some remains


def test_a_small_season_and_what_goes_on_beyond_the_rows_are_found(tmp_path):
    """A season of a tenth of the trend's deviation: it starts with its own variance, not with 1."""
    time = np.arange(0, 18, 1 / 6)
    noise = np.random.default_rng(0).normal(size=len(time))
    y = 1.2 * time + 0.5 * np.sin(2 * np.pi * time) + 0.1 * noise
    rest, last = time < 16, time >= 16
    options = ("kernel.candidates=[rbf]", "kernel.max_evaluations=20", "data.test_fraction=0")
    fitted, config = chosen(time[rest], y[rest], *options, folder=tmp_path / "run")
    assert "periodic" in fitted.metrics["model.kernel_choice"]
    assert "forecasts of its last three tenths" in config.facts.kernel_choice
    mean, _, lower, upper = fitted.predict(time[last, None])
    assert np.sqrt(np.mean((mean - y[last]) ** 2)) < 0.25  # 0.35 without the season
    assert np.mean((lower < y[last]) & (y[last] < upper)) > 0.85


def test_every_season_that_the_kernel_lacks_is_tried():
    """The highest peak of the periodogram may be a slow wander, and the second the season."""
    series = Decomposition((Season(1.09, 0.1), Season(0.11, 0.07)), 0.4, 0.07)

    def tried(node):
        """Periods of the seasons that are tried beside the terms of ``node``."""
        best = Fit("sum", node, {"noise_variance": 0.1}, 0.0)
        added = [new["kernels"][-1] for _, new in _with_one_more_term(best, series, [CONFIGS])]
        last = [(term.get("kernels") or [term])[-1] for term in added]
        return sorted(term["period"] for term in last if "period" in term)

    assert tried(kernel_node("matern12", [CONFIGS])) == [0.11, 0.11, 1.09, 1.09]
    known = kernel_node("rbf + rbf*periodic", [CONFIGS])
    for found, left in ((0.108, 1.09), ([1.1], 0.11)):
        known["kernels"][1]["kernels"][1]["period"] = found
        assert tried(known) == [left, left]
    known = kernel_node("periodic + rbf*periodic", [CONFIGS])
    assert tried(known) == []


def test_terms_added_to_a_constant_or_a_line_start_above_their_floor():
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)
    best = Fit("rbf", kernel_node("rbf", [CONFIGS]), {"noise_variance": 0.1}, 0.0)
    for y in (0.0 * x, 3.0 * x):
        added = _with_one_more_term(best, decomposed(x, y), [CONFIGS])
        terms = [new["kernels"][-1] for _, new in added]
        factors = [each for term in terms for each in term.get("kernels", [term])]
        starts = [each.get("outputscale") for each in factors]
        assert min(start for start in starts if isinstance(start, float)) >= 1e-5


def test_the_noise_of_a_series_starts_above_the_floor_of_the_likelihood():
    series = Decomposition((), 0.01, 0.4)
    for floor, want in ((1e-6, 0.001), (0.05, 0.0525)):
        given = {"noise_variance": 0.3, "noise_floor": floor}
        assert _with_initial_noise(given, series)["noise_variance"] == pytest.approx(want)


def test_the_logarithm_is_advised_where_its_density_of_the_targets_is_higher(tmp_path):
    time = np.linspace(0, 6, 90)
    season = 0.4 * np.sin(2 * np.pi * time) + 0.05 * np.random.default_rng(0).normal(size=90)
    quick = ("kernel.candidates=[rbf]", "kernel.rounds=0", "kernel.max_evaluations=20")
    advice = "try data.target_transform=log"
    grows, _ = chosen(time, np.exp(0.5 * time + season), *quick, folder=tmp_path / "a")
    assert advice in grows.metrics["model.kernel_choice"]
    for place, y in enumerate((time + season + 1e3, time + season - 1.0)):
        steady, _ = chosen(time, y, *quick, folder=tmp_path / f"b{place}")
        assert "logarithm" not in steady.metrics["model.kernel_choice"]


def test_targets_whose_logarithms_are_equal_to_rounding_have_no_lead_of_them(tmp_path):
    """The logarithms were divided by a deviation of zero, and an IndexError ended the run."""
    y = 1e23 * (1.0 + 2.3e-16 * (np.arange(30) % 7))
    assert len(set(y)) > 3
    assert len(set(np.log(y))) == 1
    quick = ("kernel.candidates=[rbf]", "kernel.rounds=0", "kernel.max_evaluations=5")
    steady, _ = chosen(np.arange(30.0), y, *quick, folder=tmp_path / "a")
    assert "logarithm" not in steady.metrics["model.kernel_choice"]
    with pytest.raises(DataError, match="1e\\+23 up to rounding once they are transformed"):
        chosen(np.arange(30.0), y, "data.target_transform=log", folder=tmp_path / "b")


def test_the_lead_of_the_logarithm_is_that_of_two_fits_with_its_jacobian(monkeypatch, tmp_path):
    found = []
    right = module._lead_of_logarithm

    def noted(best, *rest):
        found.append(right(best, *rest))
        return found[-1]

    monkeypatch.setattr(module, "_lead_of_logarithm", noted)
    time = np.linspace(0, 6, 60)
    y = np.exp(0.5 * time + 0.1 * np.random.default_rng(0).normal(size=60))
    quick = ("kernel.candidates=[rbf]", "kernel.rounds=0", "data.test_fraction=0")
    plain, _ = chosen(time, y, *quick, "kernel.max_evaluations=99", folder=tmp_path / "plain")
    options = (*quick, "kernel.max_evaluations=99", "data.target_transform=log")
    log, _ = chosen(time, y, *options, folder=tmp_path / "log")
    jacobian = np.log(y.std() / (np.log(y).std() * y)).sum()
    lead = log.metrics["train.evidence"] - plain.metrics["train.evidence"] + jacobian
    assert found[0] == pytest.approx(lead, abs=0.2)
    assert found[1] == -np.inf


def test_terms_are_exchanged_and_negligible_ones_left_out():
    node = kernel_node("matern12 + periodic + linear", [CONFIGS])
    node["kernels"][0] |= {"outputscale": 1e-5, "lengthscale": [2.0]}
    best = Fit("matern12 + periodic + linear", node, {"noise_variance": 0.1}, 0.0)
    found = dict(_with_one_changed(best, [CONFIGS]))
    assert set(found) == {
        "periodic + linear",
        "rbf + periodic + linear",
        "matern52 + periodic + linear",
        "matern12 + rbf*periodic + linear",
    }
    assert found["rbf + periodic + linear"]["kernels"][0]["lengthscale"] == [2.0]
    assert found["periodic + linear"]["kernels"] == node["kernels"][1:]
    pair = Fit("matern12 + linear", sum_of([node["kernels"][i] for i in (0, 2)]), {}, 0.0)
    assert "linear" not in dict(_with_one_changed(pair, [CONFIGS]))  # the noise is not known
    alone = dict(_with_one_changed(replace(pair, likelihood=best.likelihood), [CONFIGS]))
    assert alone["linear"] == node["kernels"][2]


def test_of_equal_evidence_the_better_forecast_is_taken():
    def fit(name, hyperparameters, forecast):
        return Fit(name, {}, {}, 0.0, None, 0.0, hyperparameters, forecast)

    simple, rich = fit("simple", 3, 1.0), fit("rich", 9, 1.2)
    assert _preferred([rich, simple]) is rich
    assert _preferred([rich, fit("simple", 3, 1.15)]).name == "simple"  # about as well
    assert _preferred([fit("rich", 9, None), fit("simple", 3, None)]).name == "simple"


@torch.no_grad()
def test_forecasts_are_those_of_exact_processes():
    x = torch.rand(20, 1, generator=torch.Generator().manual_seed(0)).double() * 4
    y = torch.from_numpy(drawn(RBF(lengthscale=1.0), x, 1e-2, 1))
    model = ExactGP(kernel=RBF(), mean=Constant(0.25), likelihood=Gaussian(0.0625)).double()
    order = x[:, 0].argsort()
    expected = []
    for start, end in ((14, 16), (16, 18), (18, 20)):
        known, later = order[:start], order[start:end]
        gram = model.kernel.evaluate(x[known], x[known]) + 0.0625 * torch.eye(start)
        cross = model.kernel.evaluate(x[later], x[known])
        weights = torch.linalg.solve(gram, cross.mT).mT
        mean = 0.25 + weights @ (y[known] - 0.25)
        variance = model.kernel.diagonal(x[later]) + 0.0625 - (weights * cross).sum(1)
        expected.append(torch.distributions.Normal(mean, variance.sqrt()).log_prob(y[later]))
    assert _forecast(model, x, y) == pytest.approx(float(torch.cat(expected).mean()), rel=1e-9)


def test_values_go_into_every_node_of_a_tree():
    node = kernel_node("2*rbf(ard_num_dims=2) + periodic(ard_num_dims=null)*linear", [CONFIGS])
    config = OmegaConf.create({"kernel": node, "facts": {"num_inputs": 2}})
    kernel = build(config, "kernel")
    rbf, product = kernel.kernels
    rbf.lengthscale = torch.tensor([0.5, 3.0])
    product.kernels[0].period = torch.tensor(0.25)
    found = with_values(node, kernel)
    assert found["kernels"][0]["lengthscale"] == pytest.approx([0.5, 3.0])
    assert found["kernels"][1]["kernels"][0]["period"] == pytest.approx(0.25)
    assert node["kernels"][0]["lengthscale"] == 1.0  # the original is as it was
    config.kernel = found
    again = build(config, "kernel")
    assert torch.allclose(again.kernels[0].lengthscale, rbf.lengthscale)


@pytest.mark.parametrize(
    "expression", ["change_points(rbf, matern32)", "warped(rbf)", "spectral_mixture", "rbf"]
)
def test_every_learned_value_survives_in_the_node(expression):
    """Of learned parameters, as far as the class has an option for them."""
    node = kernel_node(expression, [CONFIGS])
    config = OmegaConf.create({"kernel": node, "facts": {"num_inputs": 2}})
    kernel = build(config, "kernel")
    for number, parameter in enumerate(kernel.parameters()):
        parameter.data += 0.1 + 0.01 * number * torch.rand_like(parameter)
    config.kernel = with_values(node, kernel)
    again = build(config, "kernel")
    x = torch.randn(6, 2)
    torch.testing.assert_close(again.evaluate(x), kernel.evaluate(x))


def test_fits_of_one_name_are_told_once():
    """Those of a periodic kernel differ in the period they began with."""

    def made(name, score):
        return Fit(name, {}, {}, score / 100, None, score, 3)

    fits = [made("rbf + periodic", 9.0), made("rbf + periodic", 8.5), made("rbf", 7.0)]
    text = _describe(fits[0], [*fits, made("rbf", 6.0)], 100, _Clock(1.0))
    assert text.endswith("relative to it, in nats: rbf -2.0")
    ahead = _describe(fits[2], fits, 100, _Clock(1.0))
    rule = "one with more hyperparameters must lead by 3"
    assert ahead.endswith(f"rbf + periodic +2.0 ({rule})")


def test_processes_that_share_a_run_stop_looking_together():
    class Late(Processes):
        def all_max(self, *values):
            return [1.0 for _ in values]

    clock = _Clock(1e9)
    assert clock.left
    with work_shared(Late(0, 2)):
        assert list(clock.until("abc")) == ["a"]


def test_processes_that_share_a_run_compare_the_same_numbers():
    """Those of the first: where rounding differs, they would fit and choose different kernels."""

    class Second(Processes):
        def broadcast(self, values):
            for value in values:
                value.fill_(-5.0)

    fitter = fast_fitter()
    fitter.in_vain = 2
    with work_shared(Second(1, 2)):
        found = fitter.fit("rbf", {"_target_": "gpx.kernels.RBF"})
    assert (found.evidence, found.predictive) == (-5.0, -5.0)


def test_a_sum_needs_rows_for_its_hyperparameters():
    """Few uneven rows with noise of two levels: seasons of any period fit them."""
    draws = np.random.default_rng(0)
    x = draws.uniform(size=30)
    y = np.sin(5 * x) + (draws.uniform(size=30) < 0.33) + 0.1 * draws.normal(size=30)
    options = ("data.test_fraction=0.2", "kernel.rounds=2", *QUICK)
    found = gpx.fit(x[:, None], y, "approx=exact", "kernel=auto", *options, keep=False)
    assert "periodic" not in found.metrics["model.kernel_choice"]
    assert found.metrics["test.mnlp"] < 3.0


def two_classes(n, rows):
    """Of ten inputs five matter, and not linearly; ``rows`` are for training."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(n, 10))
    f = 2.0 * np.sin(1.5 * x[:, 0]) + x[:, 1] * x[:, 2] + x[:, 3] ** 2 - x[:, 4] - 1.0
    y = np.array(["no", "yes"])[(f > 0.0).astype(int)]
    return (x[:rows], y[:rows]), (x[rows:], y[rows:])


def test_kernels_of_classes_are_fitted_under_a_prior_that_the_run_keeps(tmp_path):
    """Without one a single lengthscale was taken, and the negative log density was 0.44."""
    seen, new = two_classes(600, 200)
    fitted, config = chosen(*seen, "approx=laplace", folder=tmp_path, test=new)
    assert config.prior._target_ == "gpx.priors.DimensionScaled"
    assert "with prior=dimension_scaled" in fitted.metrics["model.kernel_choice"]
    lengthscales = fitted.hyperparameters["kernel.lengthscale"]
    assert lengthscales.shape == (10,)
    assert lengthscales[5:].min() > 2.0 * lengthscales[:5].max()


def test_a_prior_of_the_user_stays_and_planes_have_none(tmp_path):
    (x, y), _ = two_classes(60, 60)
    fast = ("approx=laplace", "kernel.max_evaluations=5", "trainer.max_steps=2")
    given = ("prior=lognormal", "prior.parameters.noise_variance=null")
    _, config = chosen(x, y, *fast, *given, folder=tmp_path / "own")
    assert config.prior._target_ == "gpx.priors.Priors"
    _, config = chosen(x, y, *fast, "kernel.candidates=[linear]", folder=tmp_path / "plane")
    assert config.prior is None


@pytest.mark.filterwarnings("ignore:1 sample of each of the 4 chains is too few")
def test_optimizers_without_priors_get_none(tmp_path):
    (x, y), _ = two_classes(60, 60)
    steps = ("optimizer.burn_in=2", "optimizer.iterations=8", "optimizer.thin=1")
    _, config = chosen(
        *(x, y, "approx=elliptical_slice", "kernel.candidates=[rbf]", *steps),
        "kernel.max_evaluations=5",
        folder=tmp_path,
    )
    assert config.prior is None


def test_rows_too_few_to_compare_kernels_have_no_prior(tmp_path):
    (x, y), _ = two_classes(60, 9)
    _, config = chosen(x, y, "approx=laplace", "data.test_fraction=0", folder=tmp_path)
    assert "too few" in config.facts.kernel_choice
    assert config.get("prior") is None


@pytest.mark.parametrize("function", ["few inputs", "plane"])
def test_of_many_inputs_kernels_are_fitted_under_a_prior_too(function, tmp_path):
    """Without it a plane is all that is found of a function of two inputs of sixty."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(120, 60))
    y = 2.0 * np.sin(1.5 * x[:, 0]) + x[:, 1] ** 2 if function == "few inputs" else x.sum(1)
    y = y + 0.1 * draws.normal(size=120)
    candidates = "kernel.candidates=[rbf,matern32,'linear(ard_num_dims=null)']"
    fitted, config = chosen(x, y, candidates, folder=tmp_path)
    if function == "plane":
        assert config.get("prior") is None
        return
    assert config.prior["_target_"] == "gpx.priors.DimensionScaled"
    assert "with prior=dimension_scaled" in config.facts.kernel_choice
    lengthscales = fitted.model.hyperparameters["kernel.lengthscale"]
    assert set(np.argsort(lengthscales)[:2]) == {0, 1}
