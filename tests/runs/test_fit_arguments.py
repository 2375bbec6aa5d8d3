"""Parts and options that gpx.fit is given: texts, numbers and objects."""

import copy
import pickle
import sys

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from quick_fits import QUICK

import gpx
from gpx.errors import ConfigError, GPXError
from gpx.inducing import Given
from gpx.kernels import RBF, Kernel, Matern32, Periodic
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Constant
from gpx.means import Linear as LinearMean
from gpx.objectives import SVGPELBO, Evidence, ExactMLL, LeaveOneOut
from gpx.priors import LogNormal, Priors
from gpx.runs import resume
from gpx.runs.folder import RunFolder


def test_options_without_a_dot_are_arguments_too(arrays, tmp_path):
    named = gpx.fit(*arrays, "trainer.max_steps=2", approx="exact", seed=3, keep=False, quiet=True)
    texts = gpx.fit(
        *arrays, "trainer.max_steps=2", "approx=exact", "seed=3", keep=False, quiet=True
    )
    assert named.metrics["test.rmse"] == texts.metrics["test.rmse"]
    assert named.model.posterior.inputs.shape == texts.model.posterior.inputs.shape


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nosie": [0.1]}, "gpx.fit got nosie=list: options are texts or numbers.* mean noise="),
        ({"kernl": "rbf"}, "kernl.*did you mean kernel"),
        ({"optimizer.bounds": [["kernel.lengthscale", 0.1, 10.0]]}, "text.*'optimizer.bounds=...'"),
        ({"data": "kin40k"}, "gpx.fit takes no data=: it trains on the arrays"),
        ({"objective": "loo"}, "objective= both as an argument and as an option"),
    ],
)
def test_arguments_that_are_no_options_are_refused(arrays, arguments, words):
    with pytest.raises(ConfigError, match=words):
        gpx.fit(*arrays, "approx=exact", "objective=exact_mll", keep=False, **arguments)


def test_arguments_may_be_numbers_of_numpy_and_lists_of_texts(arrays, tmp_path):
    choices = {"seed": np.int64(3), "kernel": "rbf", "fixed": ["kernel.lengthscale"]}
    gpx.fit(*arrays, *QUICK, **choices, folder=tmp_path / "run")
    config = RunFolder(tmp_path / "run").read_config()
    assert (config.seed, config.fixed) == (3, ["kernel.lengthscale"])


def with_one_lengthscale():
    first, second = RBF(active_dims=[0]), Matern32(active_dims=[1])
    second.parametrizations.lengthscale.original = first.parametrizations.lengthscale.original
    return first + second


class OfFeatures(Kernel):
    """A kernel that takes a network."""

    def __init__(self, network, base):
        super().__init__()
        self.network, self.base = network, base

    def covariance(self, x1, x2):
        return self.base.evaluate(self.network(x1), self.network(x2))

    def variance(self, x):
        return self.base.diagonal(x)


UNRECORDED = {
    "one kernel twice": lambda: RBF() ** 2,
    "one lengthscale for two": with_one_lengthscale,
    "a network": lambda: OfFeatures(torch.nn.Sequential(torch.nn.Linear(2, 2)).double(), RBF()),
    "a function": lambda: OfFeatures(torch.tanh, RBF()),
}


@pytest.mark.parametrize("made", UNRECORDED.values(), ids=UNRECORDED.keys())
def test_what_no_config_can_hold_is_trained_where_nothing_is_kept(arrays, tmp_path, made):
    """As in a loop of one's own, from the values that it has."""
    options = ("approx=exact", "init=constants", "trainer.max_steps=1", "data.test_fraction=0")
    kernel = made()
    fitted = gpx.fit(*arrays, *options, kernel=kernel, keep=False, quiet=True)
    x, y = (torch.as_tensor((a - a.mean(0)) / a.std(0)) for a in arrays)
    model = gpx.models.ExactGP(kernel=kernel, mean=Constant(), likelihood=Gaussian()).double()
    model.likelihood.noise_variance = fitted.model.hyperparameters["likelihood.noise_variance"]
    evidence = ExactMLL().evidence(model, x, y).value.item()
    assert fitted.metrics["train.evidence"] == pytest.approx(evidence, rel=1e-6)
    again = pickle.loads(pickle.dumps(fitted.model))
    assert np.array_equal(again.predict(arrays[0]).mean, fitted.predict(arrays[0]).mean)
    with pytest.raises(ConfigError, match=r"cannot be recorded.*with keep=False nothing is"):
        gpx.fit(*arrays, *options, kernel=kernel, folder=tmp_path / "kept")


def test_an_objective_and_an_optimizer_may_be_objects(arrays, tmp_path):
    made = {"objective": LeaveOneOut(), "optimizer": gpx.training.LBFGSB(memory=5)}
    options = ("approx=exact", "init=constants", "trainer.max_steps=3", "trainer.figures=false")
    fitted = gpx.fit(*arrays, *options, **made, folder=tmp_path / "run", quiet=True)
    assert fitted.metrics["train.objective"] == "LeaveOneOut"
    config = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert config.objective._target_ == "gpx.objectives.LeaveOneOut"
    assert config.optimizer.memory == 5
    loaded = gpx.load(tmp_path / "run")
    assert np.array_equal(loaded.predict(arrays[0]).mean, fitted.predict(arrays[0]).mean)


class Changed(SVGPELBO):
    """An objective with an argument that no config can hold."""

    elbo = True  # q(u) takes natural gradient steps, as under the one it is compared with

    def __init__(self, num_data, change):
        super().__init__(num_data)
        self.change = change

    def evidence(self, model, x, y, *, generator=None):
        found = super().evidence(model, x, y, generator=generator)
        return Evidence(self.change(found.value), "estimate", found.parts)


def test_an_objective_of_ones_own_sums_over_the_rows_trained_on(arrays, tmp_path):
    def metrics(objective, **more):
        options = ("approx=svgp", "approx.num_inducing=5", "init=constants", "approx.refit=false")
        return gpx.fit(
            *arrays,
            *(*options, "trainer.max_steps=2", "trainer.figures=false"),
            objective=objective,
            quiet=True,
            **more,
        ).metrics

    whole = metrics(SVGPELBO(num_data=10**6), folder=tmp_path / "run")
    same, other = (
        metrics(Changed(10**6, change), keep=False) for change in (torch.clone, torch.neg)
    )
    assert whole["train.evidence"] == metrics("svgp_elbo", keep=False)["train.evidence"]
    assert same["train.objective"] == "Changed"
    assert same["train.evidence"] == whole["train.evidence"] > other["train.evidence"]


def test_a_backbone_may_be_a_network(arrays, tmp_path):
    options = ("approx=dkl", "approx.num_inducing=5", "trainer.max_steps=2")
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh())
    before = network[0].weight.clone()
    fitted = gpx.fit(*arrays, *options, backbone=network, keep=False, quiet=True)
    assert fitted.model.hyperparameters["network.head.kernel.lengthscale"].shape == (3,)
    assert torch.equal(network[0].weight, before)
    with pytest.raises(
        ConfigError, match=r"approx\.backbone=\{_target_: package\.Net\}.*keep=False"
    ):
        gpx.fit(*arrays, *options, backbone=network, folder=tmp_path / "kept")
    with pytest.raises(ConfigError, match="backbone=int is no module and no text"):
        gpx.fit(*arrays, *options, backbone=3, keep=False)


def test_a_folder_of_configs_is_refused_with_what_to_do(arrays):
    with pytest.raises(ConfigError, match=r"configs of gpx alone; .*objective\._target_=package"):
        gpx.fit(*arrays, "hydra.searchpath=[file:///mine]")


def stopped(*_):
    raise KeyboardInterrupt


class TestModules:
    """Kernels, means and likelihoods that are given as modules instead of options."""

    def test_it_is_the_run_of_the_same_text(self, arrays, tmp_path):
        given = gpx.fit(*arrays, *QUICK, kernel=RBF(2) + Matern32(), folder=tmp_path / "a")
        text = "rbf + matern32(ard_num_dims=null)"
        named = gpx.fit(*arrays, *QUICK, kernel=text, folder=tmp_path / "b")
        option = gpx.fit(*arrays, *QUICK, f"kernel={text}", folder=tmp_path / "c")
        for other in (named, option, gpx.load(given.folder)):
            np.testing.assert_array_equal(given.predict(arrays[0]), other.predict(arrays[0]))

    def test_values_are_recorded_and_the_modules_stay_as_they_are(self, arrays, tmp_path):
        parts = {
            "kernel": RBF(lengthscale=0.37, outputscale=None),
            "likelihood": Gaussian(0.013),
            "mean": LinearMean(2, 0.25),
        }
        before = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        gpx.fit(*arrays, *QUICK, **parts, folder=tmp_path)
        config = OmegaConf.load(tmp_path / "config.yaml")
        assert (config.kernel.lengthscale, config.kernel.outputscale) == (0.37, None)
        assert (config.likelihood.noise_variance, config.mean.bias) == (0.013, 0.25)
        for name, part in parts.items():
            assert part.state_dict().keys() == before[name].keys()
            for key, value in part.state_dict().items():
                assert torch.equal(value, before[name][key])

    def test_a_stopped_run_goes_on_with_it(self, arrays, tmp_path, monkeypatch):
        kernel = RBF(2) * Periodic(period=1.7)
        whole = gpx.fit(*arrays, *QUICK, kernel=kernel, folder=tmp_path / "whole")
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["gpx.runs.run"], "finish", stopped)
            with pytest.raises(KeyboardInterrupt):
                gpx.fit(*arrays, *QUICK, kernel=kernel, folder=tmp_path / "part")
        assert resume(tmp_path / "part")["test.rmse"] == whole.metrics["test.rmse"]

    def test_classes_and_the_chosen_method(self, arrays, tmp_path):
        x, y = arrays
        options = ("trainer.max_steps=2", *QUICK[3:])
        fitted = gpx.fit(
            x, y > y.mean(), *options, likelihood=Bernoulli("probit"), kernel="matern32", keep=False
        )
        assert "approx=ep" in fitted.metrics["model.choice"]
        assert fitted.model.likelihood.link == "probit"
        assert fitted.predict_classes(x).probability.shape == (60, 2)

    def test_a_class_of_ones_own_is_built_again_where_it_is_trusted(
        self, arrays, tmp_path, monkeypatch
    ):
        (tmp_path / "my_tails.py").write_text(
            "from gpx.kernels import Stationary\n\n\n"
            "class MyTail(Stationary):\n"
            "    def of_squared_distance(self, r2):\n"
            "        return 1.0 / (1.0 + r2)\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        import my_tails

        fitted = gpx.fit(*arrays, *QUICK, kernel=my_tails.MyTail(2), folder=tmp_path / "run")
        with pytest.raises(GPXError, match=r"my_tails.MyTail.* add trust=my_tails"):
            gpx.load(fitted.folder)
        loaded = gpx.load(fitted.folder, trust="my_tails")
        np.testing.assert_array_equal(fitted.predict(arrays[0]), loaded.predict(arrays[0]))

    @pytest.mark.parametrize(
        ("options", "parts", "words"),
        [
            (("kernel=rbf",), {"kernel": RBF()}, "kernel= both as an argument and as an option"),
            ((RBF(),), {}, "takes modules by name, such as kernel=RBF"),
            ((), {"kernel": RBF}, "kernel=the class RBF is not a kernel of gpx"),
            ((), {"likelihood": RBF()}, "likelihood=RBF is not a likelihood of gpx"),
            ((), {"mean": 0.0}, "mean=float is not a mean of gpx"),
            ((), {"kernel": "rbf*"}, "kernel=rbf.* cannot be read"),
            ((), {"kernel": RBF(3)}, "RBF has 3 lengthscales but the inputs have 2"),
            (("kernel.lengthscales=2",), {"kernel": RBF()}, "did you mean kernel.lengthscale"),
        ],
    )
    def test_mistakes_are_one_sentence_and_leave_nothing(
        self, arrays, tmp_path, options, parts, words
    ):
        with pytest.raises(ConfigError if "3" not in words else GPXError, match=words):
            gpx.fit(*arrays, *QUICK, *options, **parts, folder=tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_options_change_what_was_given(self, arrays, tmp_path):
        options = (*QUICK, "kernel.lengthscale=0.7")
        gpx.fit(*arrays, *options, kernel=RBF(lengthscale=2.0), folder=tmp_path)
        assert OmegaConf.load(tmp_path / "config.yaml").kernel.lengthscale == 0.7


def test_points_of_a_given_selector_are_those_of_the_run(arrays, tmp_path):
    points = np.random.default_rng(1).normal(size=(7, 2))
    fitted = gpx.fit(
        *arrays,
        *("approx=sgpr", *QUICK[2:]),
        selector=Given(points),
        quiet=True,
        folder=tmp_path / "r",
    )
    config = OmegaConf.load(tmp_path / "r" / "config.yaml")
    assert config.approx.num_inducing == 7
    loaded = gpx.load(tmp_path / "r").predict(arrays[0])
    np.testing.assert_array_equal(loaded.mean, fitted.model.predict(arrays[0]).mean)
    by_text = gpx.fit(
        *arrays,
        *("approx=sgpr", *QUICK[2:], "++approx.selector._target_=gpx.inducing.Given"),
        "++approx.selector.points='" + Given(points).construction()["points"] + "'",
        quiet=True,
        keep=False,
    )
    np.testing.assert_array_equal(by_text.model.predict(arrays[0]).mean, loaded.mean)


def test_priors_may_be_objects(arrays, tmp_path):
    x, y = arrays
    priors = Priors({"kernel.lengthscale": LogNormal(0.05, 1.01), "noise_variance": None})
    fitted = gpx.fit(x, y, *QUICK, prior=priors, quiet=True, folder=tmp_path / "run")
    text = gpx.fit(x, y, *QUICK, quiet=True, keep=False)
    name = "kernel.lengthscale"
    assert (fitted.hyperparameters[name] < 0.1).all()
    assert (text.hyperparameters[name] > 0.1).all()
    np.testing.assert_array_equal(gpx.load(fitted.folder).predict(x).mean, fitted.predict(x).mean)
    node = OmegaConf.load(tmp_path / "run" / "config.yaml").prior
    assert node.parameters[name] == {
        "_target_": "gpx.priors.LogNormal",
        "median": 0.05,
        "factor": 1.01,
    }


def test_priors_of_torch_are_taken_where_nothing_is_recorded(arrays):
    law = torch.distributions.LogNormal(-3.0, 0.01)
    priors = Priors({"lengthscale": law})
    fitted = gpx.fit(*arrays, *QUICK, prior=priors, quiet=True, keep=False)
    assert (fitted.hyperparameters["kernel.lengthscale"] < 0.1).all()
    with pytest.raises(ConfigError, match=r"parameters.lengthscale is a LogNormal.*keep=False"):
        gpx.fit(*arrays, *QUICK, prior=priors, quiet=True)
    with pytest.raises(ConfigError, match=r"prior=LogNormal is not a prior of gpx, such as"):
        gpx.fit(*arrays, *QUICK, prior=law, quiet=True)
