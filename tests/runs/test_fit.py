"""Training on arrays from Python is the run that train.py makes of the same numbers."""

import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from frames import Frame
from hydra.core.global_hydra import GlobalHydra
from quick_fits import QUICK

import gpx
from gpx.commands.predict import main as predict
from gpx.constraints import fix
from gpx.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DTypeError,
    GPXError,
    ShapeError,
    WriteError,
)
from gpx.kernels import RBF, Periodic
from gpx.likelihoods import GaussHermite, Gaussian, Likelihood
from gpx.objectives import ExactMLL
from gpx.runs import resume
from gpx.runs.folder import RunFolder
from gpx.training import ConstantInitialisation


def test_what_was_learned_is_there_to_read(arrays, tmp_path, capsys):
    fitted = gpx.fit(
        *arrays, "approx=exact", "kernel=rbf+linear", *QUICK[2:], folder=tmp_path / "r"
    )
    learned = fitted.model.hyperparameters
    kernel = fitted.model.posterior.kernel
    np.testing.assert_array_equal(
        learned["kernel.kernels.0.lengthscale"], kernel.kernels[0].lengthscale.detach()
    )
    assert learned["likelihood.noise_variance"] == fitted.model.likelihood.noise_variance.item()
    assert set(learned) >= {"kernel.kernels.1.slope_variance", "mean.constant"}
    said = capsys.readouterr().err
    noise = f"likelihood.noise_variance {learned['likelihood.noise_variance']:.3g}"
    assert f"{noise}\n" in said
    assert "hyperparameters (for standardised inputs and target): kernel." in said
    assert repr(fitted).startswith("Fitted(Predictor(ExactPosterior of 'y' given 2 inputs: kernel.")
    assert noise in repr(gpx.load(fitted.folder))
    assert str(fitted.folder) in repr(fitted)


def test_a_chain_without_samples_says_that_it_outlasts_its_seconds(tmp_path, capsys):
    x = np.linspace(-1.0, 1.0, 12)[:, None]
    options = ("approx=elliptical_slice", "kernel=rbf", "init=constants", *QUICK[4:])
    limits = ("optimizer.burn_in=8", "optimizer.thin=2", "trainer.max_steps=24")
    limits += ("trainer.budget=0.001", "data.test_fraction=0")
    with pytest.warns(UserWarning, match="the largest R-hat"):
        fitted = gpx.fit(x, (x[:, 0] > 0) * 1.0, *options, *limits, folder=tmp_path)
    said = capsys.readouterr().err
    assert said.count("nothing to predict with yet: training goes on until there is") == 1
    assert fitted.predict_classes(x).probability.shape == (12, 2)


@pytest.mark.parametrize(
    "options",
    [
        ("approx=grief", "kernel=rbf"),
        ("approx=reweighted", "kernel=rbf", "inference=type2"),
        ("approx=elliptical_slice", "kernel=rbf", "optimizer.burn_in=2", "optimizer.thin=1"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*the largest R-hat")
def test_more_seconds_than_the_budget_are_said(options, capsys, monkeypatch):
    clock, late = time.perf_counter, []
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + 1e6 * len(late))
    monkeypatch.setattr(ConstantInitialisation, "__call__", lambda *_, **__: late.append(1))
    x = np.linspace(-1.0, 1.0, 30)[:, None]
    y = (x[:, 0] > 0) * 1.0 if "elliptical" in options[0] else np.sin(5.0 * x[:, 0])
    limits = ("trainer.budget=1e-6", "data.test_fraction=0", "trainer.max_steps=12", *QUICK[3:])
    gpx.fit(x, y, *options, *limits, keep=False)
    said = capsys.readouterr().err
    assert said.count("seconds, above trainer.budget=1e-06: ") == 1
    assert "its start took 1e+06 of them and is always finished" in said


def test_a_table_in_the_place_of_an_option_is_answered_with_how_to_name_it(arrays):
    said = r"'rows.csv' is not an option; for a table of your own write data=csv data.path=rows.csv"
    with pytest.raises(ConfigError, match=said):
        gpx.fit(*arrays, "rows.csv")


def test_extras_are_attributes_of_the_package():
    """``gpx.thompson.thompson_batch`` needs no import but that of ``gpx``, which stays light."""
    script = (
        "import gpx, sys; assert 'torch' not in sys.modules; "
        "assert 'kernels' in dir(gpx); assert 'botorch' not in dir(gpx); "
        "gpx.kernels.RBF(); gpx.thompson.thompson_batch; assert 'sklearn' not in vars(gpx)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_fit_predict_and_load(arrays, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = arrays
    fitted = gpx.fit(x, y, *QUICK)
    assert fitted.folder.parent.name == "arrays"
    assert fitted.metrics["test.rmse_original"] < 0.3 * y.std()
    mean, std, lower, upper = fitted.predict(x[:3])
    assert (np.abs(mean - y[:3]) < 3.0).all()
    assert ((lower < mean) & (mean < upper) & (std > 0)).all()
    np.testing.assert_array_equal(gpx.load(fitted.folder).predict(x[:3]).mean, mean)


def test_equals_the_command_line_on_the_same_numbers(arrays, tmp_path):
    x, y = arrays
    first = gpx.fit(x, y, *QUICK, folder=tmp_path / "a")
    test = np.zeros(60, dtype=bool)
    test[[5, 17, 40]] = True
    second = gpx.fit(x[~test], y[~test], *QUICK, test=(x[test], y[test]), folder=tmp_path / "b")
    assert first.metrics["train.evidence"] != second.metrics["train.evidence"]
    np.savez(tmp_path / "rows.npz", x=x, y=y, held=test)
    options = ["data=npz", f"data.path={tmp_path / 'rows.npz'}", "data.test=held", *QUICK]
    third = gpx.runs.run(
        gpx.options.composition.composed(options), gpx.runs.RunFolder(tmp_path / "c")
    )
    assert third["train.evidence"] == pytest.approx(second.metrics["train.evidence"], rel=1e-9)
    assert third["test.rmse"] == pytest.approx(second.metrics["test.rmse"], rel=1e-6)


def test_quiet_and_without_a_folder(arrays, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "passing"))
    (tmp_path / "passing").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    x, y = arrays
    loud = gpx.fit(x, y, *QUICK, folder=tmp_path / "loud")
    assert "test metrics" in capfd.readouterr().err
    fitted = gpx.fit(x, y, *QUICK, quiet=True, keep=False)
    assert capfd.readouterr() == ("", "")
    assert fitted.folder is None
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        ["passing", "loud", *(path.name for path in (tmp_path / "loud").rglob("*"))]
    )
    np.testing.assert_array_equal(fitted.predict(x).mean, loud.predict(x).mean)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(x).mean, loud.predict(x).mean)
    assert again.sample(x, 3).shape == (3, 60)
    assert (again.latent(x).std < again.predict(x).std).all()
    with pytest.raises(ConfigError, match=r"keep=False and folder=a contradict"):
        gpx.fit(x, y, *QUICK, folder="a", keep=False)
    assert repr(fitted).endswith("folder=None)")


@pytest.mark.parametrize("more", [(), ("trainer.figures=true",)])
def test_nothing_is_drawn_for_a_folder_that_is_not_kept(arrays, monkeypatch, more):
    drawn = []
    monkeypatch.setattr(RunFolder, "write_figure", lambda self, name, _: drawn.append(name))
    options = [o for o in QUICK if "figures" not in o and "tensorboard" not in o]
    gpx.fit(*arrays, *options, *more, quiet=True, keep=False)
    assert bool(drawn) == bool(more)


def test_classes_and_one_input(tmp_path):
    x = np.linspace(-1.0, 1.0, 80)
    options = ("approx=svgp", "likelihood=bernoulli", "approx.num_inducing=10", *QUICK[3:])
    options = (*options, "trainer.max_steps=60")
    fitted = gpx.fit(x, np.where(x > 0.0, 2, 1), *options, folder=tmp_path / "run")
    assert fitted.predict_classes([[-0.9], [0.9]]).label.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"y": np.ones(59)}, ShapeError, r"\(60, 2\) and targets of shape \(59,\)"),
        ({"y": ["a"] * 60}, DTypeError, "an array of real numbers"),
        (
            {"y": ["no", "yes"] * 30},
            DTypeError,
            r"texts \('no', 'yes'\); for classes choose likelihood=bernoulli",
        ),
        ({"y": ["a", "b", "c"] * 20}, DTypeError, "for classes choose likelihood=softmax"),
        ({"y": np.full(60, np.nan)}, GPXError, "^the data set, data row 1, .* found nan"),
        ({"test": (np.ones((3, 5)), np.ones(3))}, ShapeError, "test inputs have 5 columns"),
        ({"options": ("aprox=sgpr",)}, ConfigError, "did you mean approx"),
        ({"options": ("data=kin40k",)}, ConfigError, "gpx.fit takes no data="),
        ({"options": ("data.test=y",)}, ConfigError, "gpx.fit takes no data.test="),
        ({"options": ({"approx": "sgpr"},)}, ConfigError, "options one by one as text"),
        ({"test": np.ones((3, 2))}, ShapeError, "takes a pair"),
        ({"y": np.full(60, 1j)}, DTypeError, "found complex128"),
        ({"y": np.arange(60).astype("datetime64[D]")}, DTypeError, "found datetime64"),
        ({"options": ("hydra.run.dir=x",)}, ConfigError, "gpx.fit takes no hydra.run.dir="),
        ({"options": ("approx=sgpr", "approx.num_inducing=0")}, ConfigError, "num_inducing"),
        ({"options": ("experiment=null",)}, ConfigError, "is not possible"),
        (
            {"options": ("kernel=[rbf,periodic]",)},
            ConfigError,
            r"write a sum or product of kernels as an expression",
        ),
        ({"options": ("mean=[zero,linear]",)}, ConfigError, "mean= takes one choice"),
        ({"options": ("kernel=1",)}, ConfigError, "there is no kernel=1; valid are: arc_cosine"),
        ({"options": (f"seed={2**64}",)}, ConfigError, "whole number of at most 64 bits"),
        (
            {"options": ("kernel=rbf", "kernel.lengthscale=nan")},
            ConfigError,
            "expected a finite number",
        ),
        ({"options": ("approx=exact", "optimizer=qsgp")}, ConfigError, "nothing would be trained"),
    ],
)
def test_refused_before_anything_is_left_behind(arrays, tmp_path, change, error, words):
    x, y = arrays
    folder = tmp_path / "outer" / "run"
    with pytest.raises(error, match=words):
        gpx.fit(
            x,
            change.get("y", y),
            *change.get("options", QUICK),
            test=change.get("test"),
            folder=folder,
        )
    assert not folder.parent.exists()
    assert not GlobalHydra.instance().is_initialized()


def test_monitors_see_training_and_end_it(arrays, tmp_path):
    class EarlyStopping(gpx.training.Monitor):
        def __init__(self):
            self.tested = []

        def metrics(self, step, metrics):
            self.tested.append(metrics["mnlp"])
            if step >= 4:
                raise gpx.training.StopTraining("enough")

    mine = EarlyStopping()
    options = ("approx=exact", "init=constants", "trainer.eval_every=2", "trainer.max_steps=30")
    fitted = gpx.fit(*arrays, *options, monitors=[mine], keep=False, quiet=True)
    assert fitted.metrics["train.stopped"] == "a monitor ended training after 4 steps: enough"
    assert len(mine.tested) == 2
    assert fitted.metrics["test.mnlp"] <= mine.tested[-1]  # the best point of the search


def test_unreliable_error_bars_are_warned_of_once_without_the_console(arrays):
    direct = ["approx=direct", "approx.num_basis=50", "approx.anneal=0", "init=constants"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        few = [*direct, "likelihood.noise_variance=0.001", "trainer.max_steps=3"]
        gpx.fit(*arrays, *few, keep=False, quiet=True)
    (line,) = [one for one in said if "error bars are unreliable" in str(one.message)]
    assert line.filename == __file__


@pytest.mark.parametrize("given", [gpx.training.Monitor, [gpx.training.Monitor], [print], 3])
def test_what_is_no_monitor_is_refused(arrays, given):
    with pytest.raises(ConfigError, match=r"^monitors=.*expected"):
        gpx.fit(*arrays, "approx=exact", monitors=given)


def test_a_folder_in_use_is_kept(arrays, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        gpx.fit(*arrays, *QUICK, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_that_cannot_be_made_is_one_sentence(arrays, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is a file: choose another folder="):
        gpx.fit(*arrays, *QUICK, folder=tmp_path / "file")
    with pytest.raises(ConfigError, match="Not a directory; choose another folder="):
        gpx.fit(*arrays, *QUICK, folder=tmp_path / "file" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("trainer.max_steps=1", "too few for a chain"),
        ("approx.priors.noise_mode=1e-9", "must be above likelihood.noise_floor"),
        ("approx.priors.weight_mode=1e300", "squared modes"),
    ],
)
def test_a_chain_without_samples_leaves_nothing_behind(arrays, tmp_path, option, words):
    chain = ("approx=reweighted", "approx.num_basis=10", "optimizer.burn_in=50")
    chain = (*chain, "optimizer.iterations=20", "optimizer.thin=10", *QUICK[3:], option)
    with pytest.raises(ConfigError, match=words):
        gpx.fit(*arrays, *chain, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_stopped_fit_goes_on(arrays, tmp_path, monkeypatch):
    whole = gpx.fit(*arrays, *QUICK, folder=tmp_path / "whole")

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["gpx.runs.run"], "finish", fail)
        with pytest.raises(KeyboardInterrupt):
            gpx.fit(*arrays, *QUICK, folder=tmp_path / "stopped")
    found = resume(str(tmp_path / "stopped"))
    assert found["train.evidence"] == whole.metrics["train.evidence"]


SERIES = (np.linspace(0.0, 6.0, 40), np.sin(7.0 * np.linspace(0.0, 6.0, 40)))


@pytest.mark.parametrize("steps", [("approx=exact",), ("approx=svgp", "approx.num_inducing=12")])
def test_fixed_values_are_recorded_kept_loaded_and_resumed(steps, tmp_path):
    kernel, likelihood = Periodic(period=0.51), Gaussian(0.03)
    fix(kernel, "period")
    fix(likelihood, "noise_variance")
    options = (*steps, "trainer.max_steps=4", "trainer.dtype=float64", *QUICK[4:])
    given = {"kernel": kernel, "likelihood": likelihood, "folder": tmp_path / "run"}
    fitted = gpx.fit(*SERIES, *options, "fixed=mean.constant", **given)
    names = ["mean.constant", "kernel.period", "likelihood.noise_variance"]
    assert RunFolder(tmp_path / "run").read_config().fixed == names
    resume(tmp_path / "run", options=["trainer.max_steps=8"])
    for model in (fitted.model, gpx.load(tmp_path / "run")):
        values = model.hyperparameters
        found = [float(values[name]) for name in names]
        assert found == pytest.approx([0.0, 0.51, 0.03], rel=1e-9)
        assert abs(float(values["kernel.lengthscale"]) - 1.0) > 1e-3
    with pytest.raises(ConfigError, match="fixed=null cannot be changed"):
        resume(tmp_path / "run", options=["fixed=null"])


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("fixed=[kernel.periods]", "RBF has no parameter periods to fix; there are lengthscale"),
        ("fixed=[lengthscale]", "fixed=lengthscale: expected names of parameters of the kernel,"),
        ("fixed=[approx.jitter]", "fixed=approx.jitter: expected names"),
        ("fixed=3", "fixed=3: expected names of parameters"),
        ("fixed=true", "fixed=True: expected names of parameters"),
    ],
)
def test_what_cannot_be_fixed_is_refused(option, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        gpx.fit(*SERIES, "approx=exact", "kernel=rbf", option, folder=tmp_path / "run")


@pytest.mark.parametrize(
    "options",
    [
        ("approx=exact", "optimizer=lbfgsb"),
        ("approx=exact", "optimizer=adam"),
        ("approx=vecchia", "approx.research=1"),
        ("approx=local_experts", "approx.num_experts=2"),
        ("approx=committee", "approx.num_experts=2"),
    ],
)
def test_with_everything_fixed_one_evidence_ends_training(arrays, tmp_path, capsys, options):
    values = ("kernel=rbf", "kernel.lengthscale=0.7", "likelihood.noise_variance=0.04")
    names = "kernel.lengthscale,kernel.outputscale,likelihood.noise_variance,mean.constant"
    fitted = gpx.fit(*arrays, *options, *values, f"fixed=[{names}]", *QUICK[4:], folder=tmp_path)
    assert "every parameter is fixed: nothing to train" in capsys.readouterr().err
    assert fitted.metrics["train.steps"] <= 2  # vecchia: once more for its neighbours
    assert np.isfinite(fitted.metrics["train.evidence"])
    assert fitted.metrics["test.rmse"] < 0.3
    for name, value in (("kernel.lengthscale", 0.7), ("likelihood.noise_variance", 0.04)):
        found = [v for k, v in fitted.hyperparameters.items() if k.endswith(name)]
        np.testing.assert_allclose(np.concatenate([np.ravel(v) for v in found]), value)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_trains_where_gradients_are_switched_off(arrays, mode):
    kernel = RBF(lengthscale=[1.0, 1.0])
    options = ("approx=exact", "trainer.max_steps=3", "init=constants", "trainer.device=cpu")
    expected = gpx.fit(*arrays, *options, kernel=kernel, quiet=True, keep=False)
    with mode():
        found = gpx.fit(
            *arrays, *options, kernel=RBF(lengthscale=[1.0, 1.0]), quiet=True, keep=False
        )
        inside = found.predict(arrays[0])
    assert found.metrics["train.evidence"] == expected.metrics["train.evidence"]
    np.testing.assert_array_equal(inside.mean, expected.predict(arrays[0]).mean)
    np.testing.assert_array_equal(found.predict(arrays[0]).std, expected.predict(arrays[0]).std)


def test_a_stopped_run_with_fixed_values_ends_as_it_would_have(tmp_path, monkeypatch):
    options = ("approx=exact", "kernel=rbf", "kernel.lengthscale=0.3", "fixed=kernel.lengthscale")
    options += ("trainer.max_steps=8", "trainer.checkpoint_seconds=0", *QUICK[3:])
    whole = gpx.fit(*SERIES, *options, folder=tmp_path / "whole")
    evaluate, evaluations = ExactMLL.evidence, []

    def stop(*arguments, **named):
        evaluations.append(1)
        if len(evaluations) > 4:
            raise KeyboardInterrupt
        return evaluate(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(ExactMLL, "evidence", stop)
        with pytest.raises(KeyboardInterrupt):
            gpx.fit(*SERIES, *options, folder=tmp_path / "part")
    found = resume(tmp_path / "part")
    assert found["train.evidence"] == whole.metrics["train.evidence"]
    lengthscale = gpx.load(tmp_path / "part").hyperparameters["kernel.lengthscale"]
    assert lengthscale.item() == pytest.approx(0.3, rel=1e-6)


def test_a_chosen_kernel_has_no_fixed_values_but_the_noise_may_be_fixed(tmp_path):
    options = ("approx=exact", "kernel=auto", "kernel.candidates=[rbf]", *QUICK[2:])
    with pytest.raises(ConfigError, match="kernel=auto chooses the kernel: name one"):
        gpx.fit(*SERIES, *options, "fixed=[kernel.lengthscale]", folder=tmp_path / "run")
    noise = ("likelihood.noise_variance=0.2", "fixed=[likelihood.noise_variance]")
    found = gpx.fit(*SERIES, *options, *noise, folder=tmp_path / "run").model.hyperparameters
    assert float(found["likelihood.noise_variance"]) == pytest.approx(0.2, rel=1e-9)


def test_a_full_disk_is_one_sentence(arrays, tmp_path, limited_files):
    words = r"checkpoint.pt cannot be written: File too large; .* resume="
    with limited_files(4000), pytest.raises(WriteError, match=words):
        gpx.fit(*arrays, *QUICK, folder=tmp_path / "run")
    metrics = resume(tmp_path / "run")
    assert metrics["train.steps"] == 5


def test_tensorboard_on_a_full_disk(arrays, tmp_path, limited_files, capfd):
    options = [option for option in QUICK if "tensorboard" not in option]
    hook = threading.excepthook
    with limited_files(2000), pytest.raises(WriteError, match="File too large"):
        gpx.fit(arrays[0][:20], arrays[1][:20], *options, folder=tmp_path / "run")
    assert threading.excepthook is hook
    assert "Traceback" not in capfd.readouterr().err


def numpy_state():
    return np.random.get_state()[1].tolist()  # noqa: NPY002


def test_global_random_states_stay_as_found(arrays, tmp_path):
    torch.manual_seed(3)
    states = torch.get_rng_state(), numpy_state(), random.getstate()
    gpx.fit(*arrays, *QUICK, "seed=5", folder=tmp_path / "run")
    with pytest.raises(ConfigError):
        gpx.fit(*arrays, *QUICK, "approx.num_inducing=0", folder=tmp_path / "no")
    assert torch.equal(torch.get_rng_state(), states[0])
    assert numpy_state() == states[1]
    assert random.getstate() == states[2]


OUTPUTS = ("approx=svgp", "likelihood=gaussian_outputs", "approx.num_inducing=15", *QUICK[2:])


def test_several_outputs(arrays, tmp_path, monkeypatch):
    x, first = arrays
    y = np.stack([first, 0.001 * x[:, 1] ** 2], 1)
    frame, targets = Frame(depth=x[:, 0], width=x[:, 1]), Frame(strength=y[:, 0], cost=y[:, 1])
    turned = Frame(cost=y[:9, 1], strength=y[:9, 0])
    held = (Frame(depth=x[:9, 0], width=x[:9, 1]), turned)
    options = [*OUTPUTS, "trainer.figures=true", "trainer.tensorboard=true"]
    options += ["trainer.baselines=true"]
    fitted = gpx.fit(frame, targets, *options, test=held, folder=tmp_path / "run")
    metrics, model = fitted.metrics, gpx.load(fitted.folder)
    assert model.target_names == ("strength", "cost")
    found = model.predict(frame)
    assert found.mean.shape == found.std.shape == found.lower.shape == found.upper.shape == (60, 2)
    np.testing.assert_array_equal(found.mean, fitted.predict(x).mean)
    # metrics in the data's own units are those of what is predicted, output by output
    errors = np.sqrt(np.square(found.mean[:9] - y[:9]).mean(0))
    names = [f"test.rmse_original.{name}" for name in model.target_names]
    assert [metrics[name] for name in names] == pytest.approx(errors, rel=1e-4)
    scales = model.scaler.target_scale.numpy()
    np.testing.assert_allclose(scales, y.std(0), rtol=1e-9)
    assert metrics["test.rmse"] == pytest.approx((errors / scales).mean(), rel=1e-4)
    assert metrics["test.rmse"] < 0.5 < metrics["baseline.mean.rmse"]
    assert "baseline.linear.mnlp_original.cost" in metrics
    assert metrics["test.smse.cost"] == pytest.approx(
        np.square(found.mean[:9, 1] - y[:9, 1]).mean() / y[:9, 1].var(), rel=1e-4
    )
    assert metrics["test.msll"] < metrics["baseline.mean.msll"] == 0.0
    figures = {path.name for path in (fitted.folder / "figures").iterdir()}
    drawn = {
        f"{name}_{k}.png" for name in ("predicted_against_observed", "calibration") for k in (1, 2)
    }
    assert figures == drawn | {"kernel_lengthscale.png"}
    (tmp_path / "new.csv").write_text("width,depth\n0.5,-1\n")
    arguments = [f"run={fitted.folder}", f"input={tmp_path / 'new.csv'}"]
    predict([*arguments, f"output={tmp_path / 'out.csv'}"])
    header, row = (tmp_path / "out.csv").read_text().splitlines()
    parts = ("mean", "std", "lower", "upper")
    assert header == ",".join(f"{p}_{name}" for name in model.target_names for p in parts)
    wanted = np.concatenate(model.predict([[-1.0, 0.5]]), axis=0).T.ravel()
    assert [float(cell) for cell in row.split(",")] == pytest.approx(wanted, rel=1e-8)
    with pytest.raises(DataError, match="test targets have no column 'cost'"):
        gpx.fit(frame, targets, *OUTPUTS, test=(frame, Frame(strength=first, b=first)))
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    for bad, options, error, words in (
        (y, QUICK, ConfigError, r"2 targets \(y1, y2\) and SGPR .* takes 1: .* approx=coregional"),
        (y, (*QUICK, "likelihood=gaussian_outputs"), ConfigError, "SGPR models one output"),
        (y, (*OUTPUTS, "calibrate=variance"), ConfigError, "takes one output, and there are 2"),
        (first, OUTPUTS, ConfigError, "two outputs or more, got 1"),
        (np.stack([first, first * np.nan], 1), OUTPUTS, DataError, "'y2' has 0 values in training"),
        (y[None], OUTPUTS, ShapeError, r"targets of shape \(1, 60, 2\)"),
    ):
        with pytest.raises(error, match=words):
            gpx.fit(x, bad, *options)
    with pytest.raises(ShapeError, match="test targets have 1 columns, training targets 2"):
        gpx.fit(x, y, *OUTPUTS, test=(x, first))
    assert not any((tmp_path / "plain").iterdir())


def test_an_objective_that_does_not_fit_cglb_is_named(arrays, tmp_path, monkeypatch):
    """Options that the model takes from its objective have defaults where another lacks them."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"ExactMLL needs ExactGP, or a model with .*, got CGLB"):
        gpx.fit(*arrays, "approx=cglb", "objective=exact_mll", "trainer.device=cpu")


class WeibullOfReals(Likelihood):
    """Weibull with scale exp(f), which only targets above 0 can have."""

    log_concave = False
    task = "regression"

    def __init__(self):
        super().__init__()
        self.quadrature = GaussHermite(20)

    def predictive(self, mean, variance):
        shape = torch.full_like(mean, 1.5)
        return torch.distributions.Weibull((mean + 0.5 * variance).exp(), shape)

    def log_prob(self, y, f):
        return torch.distributions.Weibull(f.exp(), 1.5, validate_args=False).log_prob(y)

    def expected_log_prob(self, y, mean, variance):
        return self.quadrature.expectation(lambda f: self.log_prob(y, f), mean, variance)


class WeibullOfTimes(WeibullOfReals):
    task = "positive"


def test_a_likelihood_of_targets_above_zero(tmp_path):
    x = np.linspace(-2.0, 2.0, 80)
    times = np.exp(1.0 + x) * np.random.default_rng(0).weibull(1.5, 80)
    options = ("approx=svgp", "approx.num_inducing=10", "optimizer=adam", *QUICK[3:])
    short, long = (*options, "trainer.max_steps=2"), (*options, "trainer.max_steps=200")
    with pytest.raises(DataError, match=r"WeibullOfReals likelihood is not finite for .* of 72 tr"):
        gpx.fit(x, times, *short, likelihood=WeibullOfReals(), folder=tmp_path / "no")
    with pytest.raises(DataError, match="expected a number above 0"):
        gpx.fit(x, times - 1.0, *short, likelihood=WeibullOfTimes(), folder=tmp_path / "n")
    fitted = gpx.fit(x, times, *long, likelihood=WeibullOfTimes(), folder=tmp_path / "run")
    mean = fitted.predict([-1.5, 1.5]).mean
    np.testing.assert_allclose(mean, np.exp([-0.5, 2.5]) * 0.9, rtol=0.6)
    assert fitted.metrics["test.rmse_original"] == fitted.metrics["test.rmse"]


class ConcaveTimes(WeibullOfTimes):
    log_concave = True


@pytest.mark.parametrize("likelihood", [ConcaveTimes(), "laplace"])
def test_log_concave_likelihoods_without_second_derivatives_have_no_laplace_start(likelihood):
    """They are log-concave, and Laplace's approximation needs more."""
    x = np.linspace(-2.0, 2.0, 60)
    times = np.exp(1.0 + x) * np.random.default_rng(0).weibull(1.5, 60)
    options = ("kernel=auto", "trainer.max_steps=2", *QUICK[3:])
    fitted = gpx.fit(x, times, *options, likelihood=likelihood, keep=False)
    assert fitted.metrics["model.choice"].startswith("approx=svgp")
    assert "the default of kernel=auto" in fitted.metrics["model.kernel_choice"]


class GammaOfTimes(WeibullOfTimes):
    """Gamma with shape 1.5 and mean exp(f); torch has no inverse of its distribution function."""

    def predictive(self, mean, variance):
        return torch.distributions.Gamma(torch.tensor(1.5), 1.5 * (-mean - 0.5 * variance).exp())

    def log_prob(self, y, f):
        return torch.distributions.Gamma(torch.tensor(1.5), 1.5 * (-f).exp()).log_prob(y)


@pytest.mark.parametrize(
    ("approx", "likelihood"), [("svgp", GammaOfTimes), ("deep_svgp", WeibullOfTimes)]
)
def test_intervals_of_targets_above_zero(approx, likelihood):
    x = np.linspace(-2.0, 2.0, 60)
    times = np.exp(1.0 + x) * np.random.default_rng(0).weibull(1.5, 60)
    options = (f"approx={approx}", "approx.num_inducing=5", "trainer.max_steps=2", *QUICK[3:])
    fitted = gpx.fit(x, times, *options, likelihood=likelihood(), keep=False)
    prediction = fitted.predict([-1.0, 1.0])
    assert ((prediction.lower > 0.0) & (prediction.lower < prediction.mean)).all()
    assert (prediction.mean < prediction.upper).all()


EXACT = ("approx=exact", "trainer.max_steps=5", *QUICK[3:])


def test_known_noise_and_weights(arrays, tmp_path):
    x, y = arrays
    noise = np.linspace(0.0, 3.0, 60)
    held = (x[:4], y[:4])
    fitted = gpx.fit(x, y, *EXACT, noise=noise, test=held, folder=tmp_path / "noise")
    scale = float(fitted.model.scaler.target_scale)
    kept = fitted.model.posterior.row_noise
    np.testing.assert_allclose(kept[0].numpy() * scale**2, noise, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(kept[1].numpy(), 1.0)
    std = fitted.predict(x[:2]).std
    more = fitted.model.predict(x[:2], noise=[0.0, 3.0]).std
    np.testing.assert_allclose(more**2, std**2 + [0.0, 3.0], rtol=1e-9)
    weighed = gpx.fit(x, y, *EXACT, weights=1.0 + noise, folder=tmp_path / "weights")
    assert weighed.model.posterior.row_noise.shape == (2, 54)
    for change, words in (
        ({"noise": noise[1:]}, r"noise= has shape \(59,\), expected \(60,\)"),
        ({"noise": noise - 1.0}, r"data row 1, column 1 \('noise'\): found -1, expected a noise"),
        ({"weights": noise}, r"found 0, expected a weight above 0"),
    ):
        with pytest.raises(GPXError, match=words):
            gpx.fit(x, y, *EXACT, **change, folder=tmp_path / "no")
    with pytest.raises(ShapeError, match="noise must be 2 variances, none of them negative"):
        fitted.model.predict(x[:2], noise=[0.0, -1.0])
    with pytest.raises(ConfigError, match=r"takes no data.noise="):
        gpx.fit(x, y, *EXACT, "data.noise=noise", folder=tmp_path / "no")


@pytest.mark.parametrize("init", ["subset", "constants"])
def test_bounds_of_the_optimizer_hold_in_the_start_too(init, arrays, tmp_path, monkeypatch):
    seen = []
    initialise = gpx.models.SGPR.initialise

    def watched(self, x, y, **options):
        seen.append(self.kernel.lengthscale.tolist())
        initialise(self, x, y, **options)

    monkeypatch.setattr(gpx.models.SGPR, "initialise", watched)
    bounds = "optimizer.bounds=[[kernel.lengthscale,0.2,0.3]]"
    gpx.fit(*arrays, *QUICK, f"init={init}", bounds, quiet=True, folder=tmp_path / "r")
    assert seen == [pytest.approx([0.3, 0.3], rel=1e-9)]  # without bounds 1 and more


def test_bounds_hold_in_steps_on_batches(arrays):
    options = ("approx=svgp", "trainer.max_steps=30", "optimizer.bounds=[[kernel.outputscale,2,3]]")
    fitted = gpx.fit(*arrays, *options, "trainer.baselines=false", quiet=True, keep=False)
    assert 2.0 <= fitted.model.hyperparameters["kernel.outputscale"] <= 3.0


def test_what_the_model_knows_is_asked_of_the_result_too(arrays):
    fitted = gpx.fit(
        *arrays,
        "approx=exact",
        "trainer.max_steps=3",
        "trainer.baselines=false",
        keep=False,
        quiet=True,
    )
    x = arrays[0][:4]
    assert fitted.hyperparameters.keys() == fitted.model.hyperparameters.keys()
    assert "likelihood.noise_variance" in fitted.hyperparameters
    np.testing.assert_array_equal(fitted.covariance(x), fitted.model.covariance(x))
    np.testing.assert_array_equal(fitted.leave_one_out().mean, fitted.model.leave_one_out().mean)


def test_a_warning_of_constant_columns_names_no_file_that_the_caller_did_not_give(arrays, caplog):
    x, y = arrays
    x = np.column_stack([x, np.ones(len(x))])
    gpx.fit(x, y, *QUICK, quiet=True, keep=False)
    (message,) = [text for text in caplog.messages if "centred but not scaled" in text]
    assert message.startswith("data arrays: constant")


def test_a_finished_run_of_chains_says_how_it_is_continued(tmp_path):
    x = np.linspace(0.0, 1.0, 12)[:, None]
    short = ("optimizer.burn_in=20", "optimizer.iterations=40", "optimizer.thin=10")
    options = ("approx=fully_bayesian", "kernel=rbf", *short, "trainer.figures=false")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few steps do not converge
        gpx.fit(x, x[:, 0], *options, folder=tmp_path / "run", quiet=True)
    with pytest.raises(CheckpointError, match=r"further with optimizer\.iterations=, or start"):
        resume(tmp_path / "run")
