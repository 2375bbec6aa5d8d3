"""Kernels written as sums and products are the kernels that the classes make."""

import sys

import numpy as np
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

import gpx
from gpx.commands.train import main
from gpx.errors import ConfigError
from gpx.kernels import RBF, ChangePoints, Linear, Matern32, Periodic
from gpx.options.build import build
from gpx.options.composition import composed
from gpx.options.config import CONFIGS
from gpx.options.kernel_expression import with_kernel_expressions


def built(*options):
    config = composed(options)
    config.facts.num_inputs = 2
    return build(config, "kernel").double()


@pytest.fixture
def printed(monkeypatch, capsys):
    """The kernel that ``gpx train`` composes for options."""

    def compose(options):
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["gpx", *options, "--cfg", "job", "--package", "kernel"])
        main()
        return capsys.readouterr().out

    yield compose
    GlobalHydra.instance().clear()


X = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rbf+linear", lambda: RBF(2).evaluate(X) + Linear(2).evaluate(X)),
        ("rbf*periodic", lambda: RBF(2).evaluate(X) * Periodic(2).evaluate(X)),
        (
            "'rbf*periodic + 2*linear'",
            lambda: RBF(2).evaluate(X) * Periodic(2).evaluate(X) + 2 * Linear(2).evaluate(X),
        ),
        (
            "0.5*(rbf + linear)*matern32*3",
            lambda: 1.5 * (RBF(2).evaluate(X) + Linear(2).evaluate(X)) * Matern32(2).evaluate(X),
        ),
        (
            "periodic(period=0.5, lengthscale=[1.0, 2.0])*rbf(active_dims=[1])",
            lambda: (
                Periodic(2, period=0.5, lengthscale=[1.0, 2.0]).evaluate(X)
                * RBF(1).evaluate(X[:, 1:])
            ),
        ),
        (
            "change_points(rbf, periodic + linear, locations=[0.4])",
            lambda: ChangePoints([RBF(2), Periodic(2) + Linear(2)], [0.4]).evaluate(X),
        ),
        (
            "warped(rbf + linear)*periodic",
            lambda: (RBF(2).evaluate(X) + Linear(2).evaluate(X)) * Periodic(2).evaluate(X),
        ),
        (
            "rbf(outputscale=2)*matern32(outputscale=3)",
            lambda: 6 * RBF(2).evaluate(X) * Matern32(2).evaluate(X),
        ),
        ("2*rbf_plus_linear", lambda: 2 * RBF(2).evaluate(X) + 2 * Linear(2).evaluate(X)),
        (
            "rbf(ard_num_dims=null)+product_matern12(family=rbf)",
            lambda: 2 * RBF(2).evaluate(X),
        ),
    ],
)
def test_values(text, expected, float64_by_default):
    torch.testing.assert_close(
        built(f"kernel={text}").evaluate(X), expected(), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    ("text", "amplitudes"),
    [
        ("rbf*periodic*matern32", [1]),  # of the first factor
        ("rbf*linear", [2]),  # a linear kernel has no other: two slopes, and none of rbf
        ("3*rbf+linear", [1, 2]),
    ],
)
def test_a_product_has_no_amplitude_twice(text, amplitudes):
    kernel = built(f"kernel={text}")
    names = ("outputscale", "slope_variance")
    found = [p.numel() for n, p in kernel.named_parameters() if any(name in n for name in names)]
    assert found == amplitudes


def test_a_multiple_of_what_has_no_amplitude_is_a_scale():
    node = composed(["kernel=2*multi_output"]).kernel
    assert (node._target_, node.scale) == ("gpx.kernels.Scale", 2.0)


def trained_kernel(folder, *options, num_inputs=3):
    """The kernel in config.yaml of a short run."""
    x = np.random.default_rng(0).uniform(size=(30, num_inputs))
    quick = ["approx=exact", "trainer.max_steps=1", "init=constants"]
    quick += ["trainer.figures=false", "trainer.tensorboard=false"]
    gpx.fit(x, x.sum(1), *quick, *options, quiet=True, folder=folder)
    return OmegaConf.load(folder / "config.yaml").kernel


def test_a_kernel_per_input_is_a_sum_over_the_inputs_with_its_variance(tmp_path):
    kernel = trained_kernel(tmp_path / "run", "kernel='matern32 + 3*rbf(lengthscale=2) per input'")
    assert kernel._target_ == "gpx.kernels.Sum"
    rest, *terms = kernel.kernels
    assert (rest._target_, rest.ard_num_dims) == ("gpx.kernels.Matern32", 3)
    assert [list(term.active_dims) for term in terms] == [[0], [1], [2]]
    assert {(term.ard_num_dims, term.lengthscale, term.outputscale) for term in terms} == {
        (1, 2.0, 1.0)
    }


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_kernel_per_input_of_a_projection_has_a_term_for_each_of_its_outputs(outputs, tmp_path):
    options = ("approx=ski", "projection=unit", f"approx.projection.num_outputs={outputs}")
    options += ("approx.variance=quadratic_form", "approx.grid_size=10")
    kernel = trained_kernel(tmp_path / "run", *options, "kernel='rbf per input'", num_inputs=4)
    assert [list(term.active_dims) for term in kernel.kernels] == [[0], [1]][:outputs]


@pytest.mark.parametrize("approx", ["dkl", "deep_svgp"])
def test_a_kernel_per_input_is_refused_where_inputs_of_kernels_are_features(approx, tmp_path):
    with pytest.raises(ConfigError, match="per input has a term for each column of the data, and"):
        trained_kernel(tmp_path / "run", f"approx={approx}", "kernel='rbf per input'")


def test_a_run_with_the_printed_kernel_has_the_same_terms_as_kernel_auto(tmp_path):
    """What kernel=auto prints can be typed."""
    name = "matern32 + matern32 per input"
    typed = trained_kernel(tmp_path / "typed", f"kernel='{name}'")
    found = trained_kernel(
        tmp_path / "auto",
        "kernel=auto",
        f"kernel.candidates=['{name}']",
        "kernel.max_evaluations=2",
    )
    assert len(typed.kernels) == len(found.kernels) == 4
    for one, other in zip(typed.kernels, found.kernels, strict=True):
        assert (one._target_, one.active_dims) == (other._target_, other.active_dims)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("linear per input", [("kernels", 0), ("kernels", 1)]),
        ("rbf*periodic per input", [("kernels", 1, "kernels", 0), ("kernels", 1, "kernels", 1)]),
        ("warped(rbf per input)", [("kernel", "kernels", 0), ("kernel", "kernels", 1)]),
    ],
)
def test_a_kernel_per_input_may_be_a_part_of_any_other(text, places, tmp_path):
    kernel = trained_kernel(tmp_path / "run", f"kernel='{text}'", num_inputs=2)
    for number, place in enumerate(places):
        node = kernel
        for part in place:
            node = node[part]
        assert list(node.active_dims) == [number]


def test_options_of_a_kernel_per_input_hold_for_each_of_its_terms(tmp_path):
    options = ("kernel='rbf per input'", "kernel.kernels.0.lengthscale=4")
    terms = trained_kernel(tmp_path / "run", *options).kernels
    assert [term.lengthscale for term in terms] == [4, 4, 4]


def test_options_of_the_parts_can_be_set():
    config = composed(["kernel=rbf*periodic+linear", "kernel.kernels.0.kernels.1.period=0.25"])
    assert config.kernel.kernels[0].kernels[1].period == 0.25


def test_what_is_no_expression_stays():
    options = ["seed=1", "kernel=rbf", "kernel=[rbf,periodic]", "kernel=choice(rbf,linear)", "-m"]
    options += ["+kernel.nu=2", "kernel=rbf,linear", "kernel=null", "kernel.active_dims=[1]"]
    assert with_kernel_expressions(options, [CONFIGS]) == options


def test_every_choice_of_a_sweep_is_read():
    (made,) = with_kernel_expressions(
        ["kernel=rbf,(rbf+linear)*periodic(period=2,lengthscale=1)"], [CONFIGS]
    )
    assert made == "kernel=rbf,'(rbf+linear)*periodic(period=2,lengthscale=1)'"


def test_kernels_of_the_user(printed, tmp_path):
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "mine.yaml").write_text("_target_: gpx.kernels.RBF\nlengthscale: 7.0\n")
    out = printed(["kernel=mine*linear", "--config-dir", str(tmp_path)])
    assert "lengthscale: 7.0" in out


def test_a_kernel_of_the_user_in_a_folder_is_no_quotient(printed, tmp_path):
    (tmp_path / "kernel" / "rbf").mkdir(parents=True)
    node = "# @package kernel\n_target_: gpx.kernels.RBF\nlengthscale: 7.0\n"
    (tmp_path / "kernel" / "rbf" / "mine.yaml").write_text(node)
    assert "lengthscale: 7.0" in printed(["kernel=rbf/mine", "--config-dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rbff*periodic", "there is no kernel rbff; did you mean rbf?"),
        ("zzz+rbf", "there is no kernel zzz; valid are: arc_cosine, categorical"),
        ("rbf+", "cannot be read (a kernel or a bracket is missing); write"),
        ("rbf)+linear", "a kernel or a bracket is missing"),
        ("rbf/2", "kernel=rbf/2 cannot be read (kernels are not divided but multiplied: 0.5*rbf)"),
        ("rbf*linear/2", "kernels are not divided but multiplied: 0.5*(rbf * linear)"),
        ("'(rbf + linear)/4'", "kernels are not divided but multiplied: 0.25*(rbf + linear)"),
        ("rbf/periodic", "a quotient of kernels is not a kernel"),
        ("rbf/0", "a quotient of kernels is not a kernel"),
        ("linear + rbf**2", "share their parameters, which no config holds: write rbf*rbf, whose"),
        ("(linear + rbf)**2", "write (linear + rbf)*(linear + rbf), whose factors have"),
        ("rbf**3", "write rbf*rbf*rbf, whose factors have"),
        ("rbf**1000", "write rbf*rbf, whose factors have"),
        ("rbf*(linear-rbf)", "a difference of kernels is not a kernel"),
        ("'rbf - linear'", "a difference of kernels is not a kernel"),
        ("warped(rbf, linear)", "options need names, such as warped(lengthscale=2)"),
        ("'rbf per inputs'", "a kernel or a bracket is missing"),
        ("'per input'", "a kernel or a bracket is missing"),
        ("'(rbf*linear) per input'", "'per input' follows one kernel that can be restricted"),
        ("'rbf(active_dims=[0]) per input'", "'per input' follows one kernel"),
        ("rbf+2", "2 is not a kernel"),
        ("0*rbf", "0 is not a positive number"),
        ("-1*rbf", "-1 is not a kernel"),
        ("2*3", "there is a number without a kernel"),
        ("rbf(2)", "options need names, such as rbf(lengthscale=2)"),
        ("rbf(lengthscal=2)", "rbf has no option lengthscal; did you mean lengthscale?"),
        ("rbf(_target_=os.system)", "rbf has no option _target_"),
        ("rbf(lengthscale=f(2))", "f(2) is not a number, word or list"),
        ("rbf(lengthscale=abc)*linear", "kernel=rbf.lengthscale=abc: expected a number"),
        ("+".join(["rbf"] * 20000), "it is too long"),
        ("[rbf,periodic]", "takes one choice; write a sum or product of kernels as an"),
    ],
)
def test_mistakes_are_one_sentence(text, said):
    with pytest.raises(ConfigError) as caught:
        built(f"kernel={text}")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_keeps_what_was_built(tmp_path):
    x = np.linspace(0, 4, 50)
    y = np.sin(6 * x) + x
    options = ["approx=exact", "kernel=rbf*periodic+linear", "trainer.max_steps=3"]
    options += ["trainer.figures=false", "trainer.tensorboard=false", "init=constants"]
    fitted = gpx.fit(x, y, *options, folder=tmp_path / "run")
    kernel = OmegaConf.load(tmp_path / "run" / "config.yaml").kernel
    assert kernel.kernels[0].kernels[1].ard_num_dims == 1
    mean = fitted.predict(x[:, None]).mean
    np.testing.assert_array_equal(gpx.load(tmp_path / "run").predict(x[:, None]).mean, mean)


@pytest.mark.parametrize(
    "text",
    [
        "rbf+linear",
        "rbf*periodic",
        "(rbf+linear)*periodic",
        "'rbf*periodic + linear'",
        "'rbf per input'",
    ],
)
def test_the_command_line_carries_it(text, printed):
    assert "gpx.kernels.RBF" in printed([f"kernel={text}"])
