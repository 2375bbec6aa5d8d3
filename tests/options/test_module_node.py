"""A module's node builds the module again, or one sentence says why there is none."""

import dataclasses
import inspect
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from public_classes import public_classes

from gpx import inducing, kernels, likelihoods, means
from gpx.constraints import fix
from gpx.errors import ConfigError
from gpx.inducing import Given, Selection, Selector
from gpx.kernels import RBF, Categorical, Kumaraswamy, Matern32, MaternNu, Periodic, Stationary
from gpx.kernels.over_axes import MultiOutput
from gpx.options.build import build
from gpx.options.composition import composed
from gpx.options.module_node import chosen_modules, fixed_in, node_of
from gpx.priors import DimensionScaled, Gamma, LogNormal, Normal, Prior, Priors

X = torch.rand(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class HeavyTail(Stationary):
    """A kernel of one's own."""

    def of_squared_distance(self, r2):
        return 1.0 / (1.0 + r2)


class Power(Stationary):
    """One with an argument of its own, which is no attribute."""

    def __init__(self, exponent, inner=None, **rest):
        super().__init__(**rest)
        self.power, self.parts = exponent, inner

    def of_squared_distance(self, r2):
        return (1.0 + r2) ** -self.power


class Spread(Stationary):
    """One with any number of arguments."""

    def __init__(self, *lengthscales):
        super().__init__(len(lengthscales), lengthscales)

    def of_squared_distance(self, r2):
        return 1.0 / (1.0 + r2)


@dataclasses.dataclass(eq=False)
class Late(Stationary):
    """One whose constructor is written after the class."""

    exponent: float

    def __post_init__(self):
        super().__init__()

    def of_squared_distance(self, r2):
        return (1.0 + r2) ** -self.exponent


class Refusing(Stationary):
    """One that cannot be built again, and does not say why."""

    built = 0

    def __init__(self):
        super().__init__()
        Refusing.built += 1
        if self.built > 1:
            raise ValueError

    def of_squared_distance(self, r2):
        return 1.0 / (1.0 + r2)


class Nearest(Selector):
    """A selector of one's own; it keeps what it is given under another name if asked to."""

    def __init__(self, count=3, hidden=False):
        if hidden:
            self.size, self.hidden = count, hidden
        else:
            self.count, self.hidden = count, hidden

    def _select(self, x, kernel, num_inducing, generator):
        return Selection(x[: self.size if self.hidden else self.count])


def rebuilt(module, part="kernel"):
    config = OmegaConf.create({part: node_of(module, part)})
    return build(OmegaConf.create(OmegaConf.to_yaml(config)), part)


KERNELS = {
    "a sum of products": lambda: 2.0 * RBF(2, [0.5, 2.0]) * Periodic(period=0.3) + Matern32() + 0.5,
    "columns": lambda: Matern32(1, active_dims=[1]) + Categorical([[0]], outputscale=None),
    "smoothness": lambda: MaternNu(nu=1.2, lengthscale=torch.tensor(0.7).item()),
    "change_points": lambda: kernels.ChangePoints([RBF(), kernels.Linear()], [0.3], 4.0),
    "warped": lambda: kernels.Warped(RBF(), Kumaraswamy(2, [0.7, 1.4])),
    "waves": lambda: kernels.SpectralMixture(2, 3, 1.3, 0.4, 0.2),
    "axes": lambda: kernels.AxisProduct("matern32", 2, [[0], [1]], [0.6, 0.9], 1.3),
    "outputs": lambda: MultiOutput("rbf", 2, 3),
    "constant": lambda: kernels.Constant(0.6),
    "one of one's own": lambda: HeavyTail(2, [0.5, 2.0]),
    "one with arguments of its own": lambda: Power(1.5, inner=None, lengthscale=3.0),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_a_kernel_is_built_again(kernel):
    kernel = kernel()
    x = torch.tensor([[0.1, 0.0], [0.4, 1.0], [0.8, 2.0]]).double()
    expected = kernel.double().evaluate(x)
    torch.testing.assert_close(rebuilt(kernel).double().evaluate(x), expected, rtol=1e-14, atol=0)


SELECTORS = public_classes(inducing, Selector) - {"Given"}


@pytest.mark.parametrize("name", [*sorted(SELECTORS), "Nearest"])
def test_a_selector_is_built_again(name):
    kind = getattr(inducing, name, Nearest)
    options = {"count": 5} if kind is Nearest else {}
    if "max_candidates" in inspect.signature(kind).parameters:
        options["max_candidates"] = 123
    selector = kind(**options)
    again = rebuilt(selector, "selector")
    assert type(again) is kind
    assert vars(again) == vars(selector)


def test_given_points_are_built_again_to_the_last_digit():
    points = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rebuilt(Given(points), "selector").points, points)
    assert torch.equal(rebuilt(Given(points[:1]), "selector").points, points[:1])


class Flat(Prior):
    """A prior of one's own; it keeps its argument under another name."""

    def __init__(self, level):
        self.height = level

    def log_prob(self, value):
        return torch.full_like(value, self.height)


@pytest.mark.parametrize(
    "priors",
    [
        Priors({"lengthscale": LogNormal(2.0, 3.0), "kernel.kernels.0.outputscale": Gamma(2, 1)}),
        Priors({"mean.constant": Normal(0.5, 1.0)}),
        DimensionScaled(7),
    ],
)
def test_priors_are_built_again(priors):
    again = rebuilt(priors, "prior")
    assert type(again) is type(priors)
    assert again.parameters.keys() == priors.parameters.keys()
    for name, prior in priors.parameters.items():
        assert type(again.parameters[name]) is type(prior)
        assert vars(again.parameters[name]) == vars(prior)


def test_numbers_of_numpy_in_priors_are_recorded_as_numbers():
    again = rebuilt(Priors({"lengthscale": Gamma(np.float64(3.0), np.float64(6.0))}), "prior")
    assert vars(again.parameters["lengthscale"]) == {"shape": 3.0, "rate": 6.0}


def test_priors_changed_beside_the_arguments_of_their_class_are_refused():
    priors = DimensionScaled(2)
    priors.parameters["noise_variance"] = Gamma(2.0, 0.1)
    with pytest.raises(ConfigError, match=r"prior: DimensionScaled cannot be .*been changed"):
        node_of(priors, "prior")


def test_a_prior_that_hides_its_argument_is_refused():
    with pytest.raises(ConfigError, match=r"prior: Flat cannot be recorded .*no attribute"):
        node_of(Priors({"lengthscale": Flat(0.0)}), "prior")


def test_a_selector_that_hides_its_arguments_is_refused():
    with pytest.raises(ConfigError, match=r"selector: Nearest cannot be recorded .*no attribute"):
        node_of(Nearest(hidden=True), "selector")
    with pytest.raises(ConfigError, match=r"the class Given is not a selector .*KMeans\(\)"):
        node_of(Given, "selector")


def test_what_was_assigned_is_what_counts():
    kernel = RBF() + Periodic()
    kernel.kernels[0].lengthscale = torch.tensor(0.25)
    kernel.kernels[1].period = torch.tensor(7.0)
    node = node_of(kernel, "kernel")
    assert node["kernels"][0]["lengthscale"] == pytest.approx(0.25, rel=1e-6)
    assert node["kernels"][1]["period"] == pytest.approx(7.0, rel=1e-6)
    assert node["kernels"][1]["lengthscale"] == pytest.approx(1.0, rel=1e-6)


def test_a_replaced_part_is_what_counts():
    kernel = 2.0 * RBF()
    kernel.kernel = Matern32()
    assert node_of(kernel, "kernel")["kernel"]["_target_"] == "gpx.kernels.Matern32"


def test_every_argument_is_recorded_under_the_public_name():
    assert node_of(RBF(), "kernel") == {
        "_target_": "gpx.kernels.RBF",
        "ard_num_dims": None,
        "lengthscale": 1.0,
        "outputscale": 1.0,
        "active_dims": None,
    }
    assert node_of(HeavyTail(), "kernel")["_target_"] == f"{__name__}.HeavyTail"


@pytest.mark.parametrize(
    ("part", "module"),
    [
        ("mean", means.Zero()),
        ("mean", means.Constant(0.7)),
        ("mean", means.Linear(2, 0.3)),
        ("likelihood", likelihoods.Gaussian(0.02, noise_floor=1e-4)),
        ("likelihood", likelihoods.GaussianOutputs(2, 0.2)),
        ("likelihood", likelihoods.Bernoulli("probit", num_nodes=12)),
        ("likelihood", likelihoods.StudentT(0.3, 5.0)),
        ("likelihood", likelihoods.Softmax(3)),
        ("likelihood", likelihoods.Poisson()),
    ],
)
def test_means_and_likelihoods(part, module):
    again = rebuilt(module, part)
    assert type(again).__name__ == type(module).__name__
    for name, value in module.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=1e-14, atol=0)


def shared():
    kernel = RBF()
    return kernel * Periodic() + kernel


def smoothed():
    kernel = MaternNu()
    kernel.nu = 2.2
    return kernel


def local():
    class Inner(HeavyTail):
        pass

    return Inner()


def weighted():
    mean = means.Linear(2)
    mean.weight.data.fill_(1.0)
    return mean


REFUSED = {
    "one module twice": (shared, r"one module in several places"),
    "an attribute": (smoothed, "its nu has been changed to 2.2"),
    "a local class": (local, r"Inner, which cannot be imported from .*file of its own"),
    "a function": (lambda: Power(1.5, inner=abs), "its inner is a builtin_function_or_method"),
    "positional": (
        lambda: Spread(1.0, 2.0),
        r"its constructor takes \*lengthscales; name its arguments",
    ),
    "a late constructor": (lambda: Late(2.0), "what its constructor was given is not known"),
    "a class": (
        lambda: RBF,
        r"kernel=the class RBF is not a kernel of gpx, such as gpx.kernels.RBF",
    ),
    "another module": (lambda: torch.nn.Linear(2, 1), "kernel=Linear is not a kernel of gpx"),
    "a number": (lambda: 3, "kernel=int is not a kernel of gpx"),
    "weights": (weighted, "no argument gives its weight the current values"),
}


@pytest.mark.parametrize(("module", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_recorded_is_one_sentence(module, words):
    module = module()
    part = "mean" if isinstance(module, means.Mean) else "kernel"
    with pytest.raises(ConfigError, match=words) as raised:
        node_of(module, part)
    assert not re.search("\n", str(raised.value))


def test_fixed_parameters_are_named_beside_the_node_and_built_from_both():
    kernel = RBF(lengthscale=2.0) + Periodic(period=0.5)
    fix(kernel, "kernels.1.period", "kernels.0.outputscale")
    node = node_of(kernel, "kernel")
    names = fixed_in(kernel, "kernel", node)
    assert names == ["kernel.kernels.0.outputscale", "kernel.kernels.1.period"]
    again = build(OmegaConf.create({"kernel": node, "fixed": names}), "kernel")
    for name, parameter in kernel.named_parameters():
        assert again.get_parameter(name).requires_grad == parameter.requires_grad, name
    assert fixed_in(RBF(), "kernel", node_of(RBF(), "kernel")) == []


def test_a_class_of_the_script_serves_where_nothing_is_kept(monkeypatch):
    script = type("Script", (HeavyTail,), {"__module__": "__main__"})
    monkeypatch.setattr("__main__.Script", script, raising=False)
    with pytest.raises(ConfigError, match=r"this script or notebook .* keep=False"):
        node_of(script(), "kernel")
    assert node_of(script(), "kernel", kept=False)["_target_"] == "__main__.Script"


def test_what_one_call_was_given_is_no_option_of_the_next():
    before = composed(["approx=exact", "data=toy1d"]).kernel
    with chosen_modules({"kernel": node_of(RBF(lengthscale=2.5), "kernel")}) as chosen:
        assert composed(["approx=exact", "data=toy1d", *chosen]).kernel.lengthscale == 2.5
    with pytest.raises(ConfigError, match="given"):
        composed(["approx=exact", "data=toy1d", "kernel=given"])
    with pytest.raises(ZeroDivisionError), chosen_modules({"kernel": node_of(RBF(), "kernel")}):
        raise ZeroDivisionError
    with pytest.raises(ConfigError, match="given"):
        composed(["approx=exact", "data=toy1d", "kernel=given"])
    assert composed(["approx=exact", "data=toy1d"]).kernel == before


def test_threads_compose_their_own_modules():
    def lengthscale(number):
        node = node_of(RBF(lengthscale=float(number)), "kernel")
        with chosen_modules({"kernel": node}) as chosen:
            return composed(["data=toy1d", "approx=exact", *chosen]).kernel.lengthscale

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lengthscale, range(1, 9))) == list(range(1, 9))


def test_an_error_without_a_message_is_told_by_its_name():
    with pytest.raises(ConfigError, match=r"building kernel again fails: ValueError$"):
        node_of(Refusing(), "kernel")
