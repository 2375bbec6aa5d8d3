"""Categories compared by the kernel: the product is the one its definition says, in every run."""

import sys

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import gpx
from gpx.constraints import fix
from gpx.errors import ConfigError, DataError
from gpx.inducing import KMeans
from gpx.kernels import RBF, Categorical, Matern52
from gpx.runs import resume

RNG = np.random.default_rng(0)
COLOURS, SIZES = RNG.choice(["red", "green", "blue"], 60), RNG.choice(["a", "b"], 60)
NUMBERS = RNG.uniform(-2.0, 2.0, (60, 2))
ROWS = [
    [float(a), colour, float(b), size]
    for (a, b), colour, size in zip(NUMBERS, COLOURS, SIZES, strict=True)
]
SIGN = {"red": 1.0, "green": -1.0, "blue": 3.0}
Y = np.array([SIGN[row[1]] * np.sin(2.0 * row[0]) + (row[3] == "a") for row in ROWS])
NEW = [[0.3, "red", 0.1, "a"], [0.3, "green", 0.1, "a"], [0.3, "blue", 0.1, "b"]]
QUICK = (
    *("data.categories=kernel", "trainer.max_steps=4", "trainer.figures=false"),
    *("trainer.tensorboard=false", "trainer.device=cpu", "trainer.baselines=false"),
    "init=constants",
)


def trained(*options, rows=ROWS, **how):
    return gpx.fit(rows, Y, *QUICK, *options, quiet=True, **(how or {"keep": False}))


def test_the_kernel_is_the_product_that_is_said():
    model = trained("approx=exact", "kernel=matern52").model
    kernel = model.posterior.kernel
    assert model.input_names[1:4] == ("x2=blue", "x2=green", "x2=red")
    coded = torch.from_numpy(model.coded(NEW))
    x = model.scaler.transform_inputs(coded)
    learned = model.hyperparameters
    scale = learned["kernel.kernels.0.outputscale"]
    near, rates = learned["kernel.kernels.0.lengthscale"], learned["kernel.kernels.1.lengthscale"]
    assert near.shape == rates.shape == (2,)
    assert "kernel.kernels.1.outputscale" not in learned
    numbers = x[:, [0, 4]].numpy() / near
    r = np.sqrt(5.0) * np.linalg.norm(numbers[:, None] - numbers[None], axis=2)
    want = scale * (1.0 + r + r**2 / 3.0) * np.exp(-r)
    for column, rate in zip((1, 3), rates, strict=True):
        apart = np.array([[a[column] != b[column] for b in NEW] for a in NEW])
        want = want * np.exp(-1.0 * apart / rate)
    np.testing.assert_allclose(kernel.evaluate(x).detach(), want, rtol=1e-12)


def test_a_kernel_per_input_has_a_term_for_each_number_and_none_for_a_text(tmp_path):
    trained("approx=exact", "kernel='matern52 per input'", folder=tmp_path / "run")
    terms, categorical = OmegaConf.load(tmp_path / "run" / "config.yaml").kernel.kernels
    assert [list(term.active_dims) for term in terms.kernels] == [[0], [4]]
    assert categorical.groups == [[1, 2, 3], [5, 6]]


def test_a_saved_run_is_loaded_and_gone_on_with(tmp_path, monkeypatch):
    fitted = trained("approx=exact", folder=tmp_path / "whole")
    loaded = gpx.load(tmp_path / "whole")
    np.testing.assert_array_equal(fitted.predict(NEW), loaded.predict(NEW))

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["gpx.runs.run"], "finish", stopped)
        with pytest.raises(KeyboardInterrupt):
            trained("approx=exact", folder=tmp_path / "part")
    assert resume(tmp_path / "part")["test.rmse"] == fitted.metrics["test.rmse"]
    kernel = OmegaConf.load(tmp_path / "part" / "config.yaml").kernel
    assert kernel.kernels[1].groups == [[1, 2, 3], [5, 6]]


@pytest.mark.parametrize("approx", ["approx=auto", "approx=exact"])
@pytest.mark.parametrize("as_module", [False, True])
def test_fixed_names_are_those_of_the_chosen_kernel(approx, as_module, tmp_path):
    kernel: dict = {"kernel": "rbf", "fixed": "kernel.lengthscale"}
    if as_module:
        kernel = {"kernel": RBF()}
        fix(kernel["kernel"], "lengthscale")
    model = trained(approx, **kernel, folder=tmp_path / "run").model
    learned = model.hyperparameters
    assert np.allclose(learned["kernel.kernels.0.lengthscale"], 1.0, rtol=1e-6)
    assert not np.allclose(learned["kernel.kernels.1.lengthscale"], 1.0, rtol=1e-3)
    fixed = OmegaConf.load(tmp_path / "run" / "config.yaml").fixed
    assert fixed == ["kernel.kernels.0.lengthscale"]


def test_an_unseen_category_is_one_more_or_refused(caplog):
    model = trained("approx=exact").model
    found = model.latent([[0.3, "violet", 0.1, "a"]])
    assert "violet" in caplog.text
    assert found.std > model.latent(NEW[:1]).std
    with pytest.raises(DataError, match="violet"):
        trained("approx=exact", "data.unseen=refuse").predict([[0.3, "violet", 0.1, "a"]])


@pytest.mark.parametrize(
    "options",
    [
        ("approx=sgpr", "approx.num_inducing=20"),
        ("approx=vecchia",),
        ("approx=svgp", "approx.num_inducing=20"),
        ("kernel=rbf+periodic",),
        ("kernel=warped",),
        ("kernel='2*linear(active_dims=[0]) + rbf*spectral_mixture'", "approx=exact"),
    ],
)
def test_methods_and_kernels_that_take_it(options):
    fitted = trained(*options)
    assert np.isfinite(fitted.predict(NEW).std).all()


def test_categories_alone():
    rows = [[row[1], row[3]] for row in ROWS]
    model = trained("approx=exact", rows=rows).model
    assert set(model.hyperparameters) >= {"kernel.lengthscale", "kernel.outputscale"}


def test_centres_of_clusters_are_of_categories_that_there_are():
    x = torch.cat([torch.rand(50, 1), torch.eye(3)[torch.arange(50) % 3]], 1).double()
    kernel = (Matern52(active_dims=[0]) * Categorical([[1, 2, 3]])).double()
    found = KMeans().select(x, kernel, 8, generator=torch.Generator()).points
    assert ((found[:, 1:] == 0.0) | (found[:, 1:] == 1.0)).all()
    assert (found[:, 1:].sum(1) == 1.0).all()
    assert len(found[:, 0].unique()) == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("approx=qsgp",), r"no such spectral .*data.categories=auto categories become inputs"),
        (("approx=dkl",), "a kernel on the inputs, and DKL has none"),
        (("approx=direct_network",), "a kernel on the inputs, and DirectNetwork has none"),
        (("kernel=auto",), "cannot be used with kernel=auto: name a kernel"),
        (("kernel=product_matern32", "approx=exact"), "and AxisProduct cannot"),
        (("approx=grid",), "data.categories=auto"),
    ],
)
def test_what_does_not_take_it_says_so(options, words):
    with pytest.raises(ConfigError, match=words) as raised:
        trained(*options)
    assert "\n" not in str(raised.value)


def test_a_table_without_categories_says_so():
    with pytest.raises(ConfigError, match="among the inputs, and arrays has none"):
        trained("approx=exact", rows=NUMBERS)
