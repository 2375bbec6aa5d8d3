"""approx=auto from Python and from the command line: chosen, written down, resumed, refused."""

import json

import numpy as np
import pytest
from omegaconf import OmegaConf
from stopped_runs import stopped_at

import gpx
from gpx import kernels
from gpx.commands.train import USAGE_ERROR
from gpx.errors import ConfigError, DataError
from gpx.kernels import RBF, Linear, Matern32, Periodic
from gpx.options.composition import composed
from gpx.runs import RunFolder, resume
from gpx.runs.choosing.automatic import _is_sampled_soon
from gpx.runs.data import chosen_by_data

QUICK = ("init=constants", "trainer.max_steps=6", "trainer.figures=false")
QUICK += ("trainer.tensorboard=false", "trainer.device=cpu", "trainer.baselines=false")


@pytest.fixture
def arrays():
    generator = np.random.default_rng(0)
    x = generator.uniform(-2.0, 2.0, (70, 2))
    return x, 50.0 + 9.0 * np.sin(x[:, 0]) * x[:, 1]


def without_choice(folder):
    """Content of config.yaml, less what is a run's own."""
    content = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    content["facts"].pop("choice")
    content["data"].pop("path", None)
    return content


def test_the_folder_is_that_of_the_method_named(arrays, tmp_path):
    options = (*QUICK, "kernel=rbf")
    chosen = gpx.fit(*arrays, *options, folder=tmp_path / "chosen")
    named = gpx.fit(*arrays, "approx=exact", *options, folder=tmp_path / "named")
    assert without_choice(chosen.folder) == without_choice(named.folder)
    reason = "approx=exact, chosen by approx=auto: 63 rows are few enough for exact inference"
    reason += "; approx=fully_bayesian averages over its hyperparameters"
    assert chosen.metrics["model.choice"] == reason
    assert OmegaConf.load(chosen.folder / "config.yaml").facts.choice == reason
    assert "model.choice" not in named.metrics
    at = arrays[0][:3]
    for one, other in zip(gpx.load(chosen.folder).predict(at), named.predict(at), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_stopped_run_goes_on_with_the_method(arrays, tmp_path):
    options = (*QUICK, "trainer.max_steps=12", "optimizer=adam")  # which is honoured
    options += ("kernel=auto", "kernel.candidates=[rbf]")
    whole = gpx.fit(*arrays, *options, folder=tmp_path / "whole").metrics
    with stopped_at(3):
        gpx.fit(*arrays, *options, folder=tmp_path / "stopped")
    assert RunFolder(tmp_path / "stopped").read_config().optimizer._target_.endswith("FirstOrder")
    resumed = resume(tmp_path / "stopped")
    for name in ("model.choice", "test.rmse", "train.evidence", "train.steps"):
        assert resumed[name] == whole[name], name


def test_kernels_whose_posterior_has_many_maxima_are_not_sampled():
    soon = [
        RBF() + Linear(),
        kernels.Matern12() * kernels.RationalQuadratic() + kernels.Constant(),
        2.0 * Matern32() + kernels.Categorical([[0, 1]]),
    ]
    late = [RBF() * Periodic() + Linear(), kernels.ArcCosine(), kernels.Cosine()]
    late += [kernels.SpectralMixture(2), kernels.ChangePoints([RBF(), RBF()])]
    assert [_is_sampled_soon(kernel) for kernel in soon + late] == [True] * 3 + [False] * 5


@pytest.mark.filterwarnings("ignore:the 2 chains have not converged")
def test_longer_chains_can_be_asked_for(arrays, tmp_path):
    """As the warning of chains that have not converged says."""
    options = ["kernel=rbf", "optimizer=hamiltonian", "optimizer.chains=2", "optimizer.burn_in=3"]
    options += ["optimizer.iterations=4", "optimizer.thin=1"]
    fitted = gpx.fit(*(part[:15] for part in arrays), *options, folder=tmp_path / "run")
    assert fitted.metrics["model.choice"].startswith("approx=fully_bayesian, chosen by approx=auto")
    assert len(fitted.hyperparameters["kernel.outputscale"]) == 8


@pytest.mark.filterwarnings("ignore:float32 has too few digits")  # of a noise that falls
def test_the_kernel_and_other_options_are_honoured(arrays, tmp_path):
    options = ("kernel=matern32", "trainer.dtype=float32", "mean=zero", "seed=3")
    gpx.fit(*arrays, *QUICK, *options, folder=tmp_path / "run")
    config = RunFolder(tmp_path / "run").read_config()
    assert config.kernel._target_ == "gpx.kernels.Matern32"
    assert config.mean._target_ == "gpx.means.Zero"
    assert (config.trainer.dtype, config.trainer.max_steps, config.seed) == ("float32", 6, 3)


def test_several_targets_classes_and_counts(tmp_path):
    generator = np.random.default_rng(1)
    x = generator.uniform(-2.0, 2.0, (50, 1))
    targets = {
        "gaussian_outputs": np.concatenate([np.sin(x), np.cos(x)], 1),
        "mixed_outputs": np.concatenate([np.sin(x), np.cos(x)], 1),
        "bernoulli": (x[:, 0] > 0).astype(float),
        "poisson": generator.poisson(3.0, 50).astype(float),
        "student_t": np.sin(x[:, 0]),
    }
    found = {
        likelihood: gpx.fit(
            *(x, y, *QUICK, "kernel=rbf", f"likelihood={likelihood}", "trainer.max_steps=3"),
            folder=tmp_path / likelihood,
        ).metrics["model.name"]
        for likelihood, y in targets.items()
    }
    assert found == {
        "gaussian_outputs": "CoregionalGP",
        "mixed_outputs": "SVGP",
        "bernoulli": "ExpectationPropagationGP",
        "poisson": "LaplaceGP",
        "student_t": "SVGP",
    }


def test_several_targets_are_taken_for_such_where_no_likelihood_is_named(tmp_path):
    x = np.random.default_rng(1).uniform(-2.0, 2.0, (50, 1))
    y = np.concatenate([np.sin(x), np.cos(x)], 1)
    open_kernel = ("kernel=auto", "kernel.candidates=[rbf]")
    fitted = gpx.fit(*(x, y, *QUICK, *open_kernel, "trainer.max_steps=3"), folder=tmp_path / "open")
    assert fitted.metrics["model.name"] == "CoregionalGP"
    assert fitted.predict(x[:4]).mean.shape == (4, 2)
    said = r"2 targets \(y1, y2\) and the likelihood \w+ takes 1.*likelihood=gaussian_outputs"
    for named in ("approx=exact", "likelihood=gaussian", "likelihood=student_t"):
        with pytest.raises(ConfigError, match=said):
            gpx.fit(x, y, *QUICK, *open_kernel, named, folder=tmp_path / named)


@pytest.mark.parametrize(("names", "likelihood"), [("ab", "Bernoulli"), ("abc", "Softmax")])
def test_texts_are_taken_for_classes_where_no_likelihood_is_named(
    names, likelihood, arrays, tmp_path, capsys
):
    x, _ = arrays
    labels = [names[int(row > 0) + int(row > 1) * (len(names) > 2)] for row in x[:, 0]]
    quick = (*QUICK, "kernel=auto", "kernel.candidates=[rbf]", "trainer.max_steps=3")
    fitted = gpx.fit(x, labels, *quick, folder=tmp_path / "open")
    chosen = likelihood.lower()
    assert f"likelihood={chosen}: the target holds {len(names)} texts" in capsys.readouterr().err
    config = RunFolder(tmp_path / "open").read_config()
    assert config.likelihood._target_.endswith(likelihood)
    named = gpx.fit(x, labels, *quick, f"likelihood={chosen}", folder=tmp_path / "named")
    assert named.metrics["train.evidence"] == fitted.metrics["train.evidence"]
    assert set(fitted.predict_classes(x[:9]).label) <= set(names)
    with pytest.raises(
        DataError, match=f"holds {len(names)} different texts .*likelihood={chosen}"
    ):
        gpx.fit(x, labels, *quick, "likelihood=gaussian", folder=tmp_path / "numbers")


def test_texts_that_are_hardly_classes_are_refused(arrays, tmp_path):
    x, y = arrays
    with pytest.raises(DataError, match=r"holds 70 different texts .*, expected numbers"):
        gpx.fit(x, [f"{value} kg" for value in y], *QUICK, folder=tmp_path)


def test_a_grid_images_and_a_sweep(train_py, tmp_path):
    quick = [*QUICK, "trainer.max_steps=2"]
    grid = ["data=grid_stress", "data.shape=[6,5,4]", "data.gap_share=0.2"]
    status, text = train_py(*grid, *quick, "hydra.run.dir=grid")
    assert status == 0, text
    assert "approx=grid, chosen by approx=auto: the data are a grid" in text
    digits = ["data=digits", "data.train_size=100"]
    status, text = train_py(*digits, *quick, "hydra.run.dir=digits")
    assert status == 0, text
    config = RunFolder("digits").read_config()
    assert config.approx._target_ == "gpx.models.CNNGP"
    assert config.likelihood._target_ == "gpx.likelihoods.Softmax"
    status, text = train_py(
        *digits, *quick, "likelihood=gaussian", "kernel=rbf", "hydra.run.dir=numbers"
    )
    assert status == 0, text
    assert "approx=exact, chosen" in text
    status, text = train_py("kernel=rbf+linear", "data=toy1d", *quick, "hydra.run.dir=sum")
    assert status == 0, text
    assert RunFolder("sum").read_config().kernel._target_ == "gpx.kernels.Sum"
    sweep = [
        "-m",
        "data=toy1d",
        "data.num_points=50,60",
        "kernel=rbf",
        "hydra.sweep.dir=sweep",
        *quick,
    ]
    status, text = train_py(*sweep)
    assert status == 0, text
    metrics = [json.loads((tmp_path / f"sweep/{i}/metrics.json").read_text()) for i in (0, 1)]
    assert [each["model.name"] for each in metrics] == ["ExactGP", "ExactGP"]


def test_rows_in_files(train_py, tmp_path):
    generator = np.random.default_rng(0)
    (tmp_path / "rows").mkdir()
    x = generator.normal(size=(600, 2)).astype(np.float32)
    np.save(tmp_path / "rows" / "x_0.npy", x)
    np.save(tmp_path / "rows" / "y_0.npy", np.sin(x[:, 0]))
    options = ["data=stream", "data.path=rows", *QUICK, "trainer.max_steps=2", "kernel=rbf"]
    status, text = train_py(*options, "hydra.run.dir=run")
    assert status == 0, text
    assert "approx=svgp, chosen by approx=auto: rows in files" in text


@pytest.mark.parametrize(("size", "told"), [(1e4, True), (20.0, False)])
def test_outliers_are_told(size, told, arrays, tmp_path, capsys):
    x, y = arrays
    y = y.copy()
    y[3:60:20] += size
    options = (*QUICK, "kernel=rbf", "data.test_fraction=0")
    gpx.fit(x, y, *options, folder=tmp_path / "run")
    said = "3 training targets are outliers, more than 10 interdecile" in capsys.readouterr().err
    assert said == told


def test_noise_by_row_and_no_test_rows(arrays, tmp_path):
    known = np.full(70, 0.5)
    options = (*QUICK, "kernel=rbf", "data.test_fraction=0", "trainer.baselines=true")
    fitted = gpx.fit(*arrays, *options, noise=known, folder=tmp_path / "run")
    assert fitted.metrics["model.choice"].startswith("approx=exact, chosen by approx=auto")
    assert "test.rmse" not in fitted.metrics


def test_budget_chooses_and_is_kept(arrays, tmp_path):
    fitted = gpx.fit(*arrays, *QUICK, "kernel=rbf", "trainer.budget=50", folder=tmp_path / "run")
    assert "trainer.budget=50" in fitted.metrics["model.choice"]
    assert RunFolder(tmp_path / "run").read_config().trainer.budget == 50


@pytest.mark.filterwarnings("ignore:the 4 chains have not converged")
@pytest.mark.parametrize("named", ["exact", "svgp", "elliptical_slice"])
def test_a_run_of_a_named_method_ends_with_its_budget(named, arrays, tmp_path):
    x, y = arrays
    options = [*QUICK, f"approx={named}", "trainer.max_steps=2000", "trainer.budget=0.01"]
    if named == "elliptical_slice":  # which has nothing to predict with before its first sample
        y = (y > y.mean()).astype(float)
        options += ["likelihood=bernoulli", "optimizer.burn_in=10", "optimizer.thin=1"]
    fitted = gpx.fit(x, y, *options, folder=tmp_path / "run")
    reason, _, most = fitted.metrics["train.stopped"].rpartition(" steps of at most ")
    assert reason.startswith("trainer.budget=0.01 seconds: ")
    assert most == ("410" if named == "elliptical_slice" else "2000")  # burn-in and iterations
    assert fitted.metrics["train.steps"] < 2000
    assert np.isfinite(fitted.metrics["test.mnlp"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["approx.num_inducing=9"], "(the default) chooses the method: name one of these"),
        (["basis=orthogonal"], "name one with approx=, for example approx=qsgp basis=orthogonal"),
        (["objective=exact_mll"], "objective= belongs to certain methods"),
        (["inducing=auto"], "belongs to certain methods"),
        (["trainer.budget=0"], "trainer.budget=0: expected seconds above 0, or null"),
        (["kernel=rbf", "optimizer=qsgp_blocks"], "choose another optimizer="),
        (["trainer.max_step=9"], "did you mean trainer.max_steps"),
        (["seed=x"], "seed=x: expected a whole number"),
    ],
)
def test_what_does_not_go_with_it_is_one_sentence(train_py, tmp_path, options, message):
    status, text = train_py("data=toy1d", *options)
    assert status == USAGE_ERROR
    assert message in text
    assert text.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("method", ["auto", "svgp", "cnn_rf"])
def test_kernels_are_not_compared_for_images(train_py, tmp_path, method):
    options = ["data=digits", "data.train_size=60", f"approx={method}", "kernel=auto"]
    status, text = train_py(*options, "likelihood=softmax")
    assert status == USAGE_ERROR
    assert "the data are images: name a kernel, for example kernel=rbf" in text
    assert not (tmp_path / "outputs").exists()


def test_a_config_alone_cannot_be_composed_anew(tmp_path):
    with pytest.raises(ConfigError, match="name a method"):
        gpx.runs.run(composed(["data=toy1d"]), RunFolder(tmp_path / "run"))


@pytest.mark.parametrize("facts", [{}, {"choice": None}, {"choice": {"a": 1}}, {"choice": 3}])
def test_a_config_without_a_choice_has_none(facts):
    assert chosen_by_data(OmegaConf.create({"facts": facts})) is None
    assert chosen_by_data(OmegaConf.create({})) is None


def test_locality_of_kernels():
    near, far = RBF(), Linear()
    assert near.local
    assert (2.0 * Matern32()).local
    assert (near * far).local
    assert not (near + far).local
    assert not Periodic().local


@pytest.mark.parametrize(
    ("rows", "inputs", "options", "told"),
    [
        (60, 50, (), True),
        (60, 49, (), False),
        (501, 50, (), False),
        (60, 50, ("prior=dimension_scaled",), False),
        (60, 50, ("likelihood=student_t", "approx=svgp"), False),
    ],
)
def test_many_inputs_for_few_rows_are_told(rows, inputs, options, told, tmp_path, capsys):
    """Lengthscales over-fit there, and ``kernel=auto`` then prefers a plane."""
    x = np.random.default_rng(0).normal(size=(rows, inputs))
    options = (*QUICK, "kernel=rbf", "data.test_fraction=0", "trainer.max_steps=1", *options)
    gpx.fit(x, np.sin(x[:, 0]), *options, folder=tmp_path / "run")
    said = "compare approx=exact kernel=rbf prior=dimension_scaled" in capsys.readouterr().err
    assert said == told
