"""What is printed of modules."""

import torch

from gpx.constraints import fix
from gpx.kernels import RBF, Periodic
from gpx.likelihoods import Gaussian
from gpx.means import Constant, Zero
from gpx.models import SVGP, ExactGP


def test_kernels_show_values_and_what_is_fixed():
    kernel = RBF(3, lengthscale=[1.0, 0.25, 3.0], active_dims=[0, 2, 3])
    assert repr(kernel) == "RBF(active_dims=[0, 2, 3], lengthscale=[1, 0.25, 3], outputscale=1)"
    fix(kernel, "outputscale")
    assert repr(kernel).endswith("outputscale=1 (fixed))")
    assert repr(RBF(9)) == "RBF(lengthscale=[9 from 1 to 1], outputscale=1)"


def test_parts_stand_below_what_holds_them():
    product = 2.0 * Periodic(period=0.5)
    inner = "(kernel): Periodic(lengthscale=1, outputscale=1, period=0.5)"
    assert repr(product) == f"Scale(\n  scale=2\n  {inner}\n)"


def test_models_show_their_parts_and_the_sizes_of_the_rest():
    model = SVGP(
        kernel=RBF(), mean=Constant(0.5), likelihood=Gaussian(0.01), num_inputs=2, num_inducing=5
    )
    shown = repr(model.to(torch.float64))
    assert shown.startswith(
        "SVGP(\n  inducing=5 x 2\n  (kernel): RBF(lengthscale=1, outputscale=1)"
    )
    assert "(mean): Constant(constant=0.5)" in shown
    assert "(likelihood): Gaussian(noise_variance=0.01)" in shown
    assert "Parametriz" not in shown


def test_a_posterior_does_not_call_everything_fixed():
    x = torch.linspace(0, 1, 5)[:, None]
    model = ExactGP(kernel=RBF(), mean=Zero(), likelihood=Gaussian(0.1))
    shown = repr(model.condition(x, x[:, 0]))
    assert "RBF(lengthscale=1, outputscale=1)" in shown
    assert "fixed" not in shown


def test_modules_without_values_are_printed_too():
    assert (
        repr(RBF(2, active_dims=[0, 1]).to("meta"))
        == "RBF(lengthscale=(2,) on meta, outputscale=() on meta)"
    )
