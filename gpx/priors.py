"""Priors of hyperparameters, for maximum a posteriori instead of maximum likelihood estimates.

With few rows the maximum of the evidence may have implausible lengthscales and noise. With priors,
optimisers maximise the evidence plus the log prior density. The density is that of the natural
values, as in GPyTorch and GPflow; the mode depends on this choice. Reported values of the evidence
do not include the prior.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints
from torch.distributions.transforms import Transform, _InverseTransform

from gpx.constraints import Positive, positive_parameters
from gpx.errors import ConfigError, ShapeError
from gpx.tensor_checks import check_at_least, is_number


class _Attributes:
    """An object whose arguments are attributes of the same names."""

    def construction(self) -> dict[str, Any] | None:
        """Every argument of the constructor by name, for the config in a run folder.

        None if one of them is no attribute of the same name.
        """
        names, own = inspect.signature(type(self)).parameters, vars(self)
        return {name: own[name] for name in names} if own.keys() >= names.keys() else None


class Prior(_Attributes, ABC):
    """The density of a hyperparameter; subclasses define ``log_prob``."""

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of every entry of the natural value; same shape."""


def _require_positive(prior: str, **numbers: float) -> None:
    for name, number in numbers.items():
        if not is_number(number) or not 0.0 < number < math.inf:
            raise ConfigError(f"{name}={number} of a {prior} prior must be positive and finite")


class Normal(Prior):
    """theta ~ N(mean, deviation^2), for hyperparameters of any sign such as ``mean.constant``.

    Args:
        mean, deviation: of theta; ``deviation`` is positive.
    """

    def __init__(self, mean: float, deviation: float) -> None:
        _require_positive("normal", deviation=deviation)
        if not is_number(mean) or not math.isfinite(mean):
            raise ConfigError(f"mean={mean} of a normal prior must be finite")
        self.mean, self.deviation = mean, deviation

    def log_prob(self, value: Tensor) -> Tensor:
        """As in ``Prior``."""
        scaled = (value - self.mean) / self.deviation
        return -0.5 * scaled.square() - math.log(self.deviation * math.sqrt(2.0 * math.pi))


class LogNormal(Prior):
    """log theta ~ N(log median, log(factor)^2): within ``factor`` of the median with 68 %.

    Args:
        median: of theta.
        factor: above one.
    """

    def __init__(self, median: float, factor: float) -> None:
        _require_positive("log-normal", median=median)
        if not is_number(factor) or not 1.0 < factor < math.inf:
            raise ConfigError(f"factor={factor} of a log-normal prior must be above 1")
        self.median, self.factor = median, factor

    def log_prob(self, value: Tensor) -> Tensor:
        """As in ``Prior``."""
        logs, deviation = value.log(), math.log(self.factor)
        scaled = (logs - math.log(self.median)) / deviation
        return -0.5 * scaled.square() - logs - math.log(deviation * math.sqrt(2.0 * math.pi))


class Gamma(Prior):
    """theta ~ Gamma(shape, rate), with mean shape / rate.

    Args:
        shape: the density vanishes at zero if above one.
        rate: in units of 1 / theta.
    """

    def __init__(self, shape: float, rate: float) -> None:
        _require_positive("gamma", shape=shape, rate=rate)
        self.shape, self.rate = shape, rate

    def log_prob(self, value: Tensor) -> Tensor:
        """As in ``Prior``."""
        constant = self.shape * math.log(self.rate) - math.lgamma(self.shape)
        return (self.shape - 1.0) * value.log() - self.rate * value + constant


class _OfTorch(Prior):
    """A distribution of torch with constant parameters, in float64 on the device of the values.

    Args:
        law: of one variable; ``_is_prior`` of it holds.
    """

    def __init__(self, law: Distribution) -> None:
        self.law, self.device = _constant(law, torch.device("cpu")), torch.device("cpu")

    def log_prob(self, value: Tensor) -> Tensor:
        """As in ``Prior``.

        Raises:
            ShapeError: the distribution is a batch of another shape.
        """
        if self.device != value.device:
            self.law, self.device = _constant(self.law, value.device), value.device
        self.require_shape(value)
        return self.law.log_prob(value.double())

    def require_shape(self, value: Tensor) -> None:
        """Raise ShapeError unless there is one prior for all entries of ``value``, or for each."""
        batch = tuple(self.law.batch_shape)
        # sizes are compared from the last on, as in torch, and value may have further ones
        pairs = zip(reversed(batch), reversed(value.shape), strict=False)
        if len(batch) > value.ndim or any(own not in (1, size) for own, size in pairs):
            raise ShapeError(
                f"{self.law!r} is a batch of {batch} priors, for a "
                f"hyperparameter of shape {tuple(value.shape)}: give one prior, or one per entry"
            )


def _is_prior(law: object) -> TypeGuard[Distribution]:
    """Whether it is a distribution of torch over all numbers, or over all positive ones."""
    if not isinstance(law, Distribution) or law.event_shape:
        return False
    support = getattr(law.support, "base_constraint", law.support)  # of a mixture: of its parts
    return support in (constraints.real, constraints.positive, constraints.nonnegative)


def _constant(law: Distribution, device: torch.device) -> Distribution:
    """A copy without gradients and without checks of values, for which a GPU would wait."""
    held = copy.copy(law)
    for name, part in vars(law).items():
        if isinstance(part, Distribution):
            vars(held)[name] = _constant(part, device)
        elif isinstance(part, Tensor):
            dtype = torch.float64 if part.is_floating_point() else part.dtype
            vars(held)[name] = part.detach().to(device, dtype)
        elif name == "transforms":
            vars(held)[name] = [_constant_transform(each, device) for each in part]
    held._validate_args = False
    return held


def _constant_transform(transform: Transform, device: torch.device) -> Transform:
    """The same of a transform of ``TransformedDistribution``, or of the parts of one."""
    inverted = isinstance(transform, _InverseTransform)
    held = copy.copy(transform)
    for name, part in vars(transform).items():
        if name == "_inv":  # the transform that an inverse inverts; of others its inverse, if made
            vars(held)[name] = _constant_transform(part, device) if inverted else None
        elif name == "_cached_x_y":
            vars(held)[name] = None, None
        elif isinstance(part, Tensor):
            vars(held)[name] = part.detach().to(device, torch.float64)
        elif isinstance(part, Transform):
            vars(held)[name] = _constant_transform(part, device)
        elif name == "parts":
            vars(held)[name] = [_constant_transform(each, device) for each in part]
    return held


class Priors(_Attributes):
    """Priors of a model's hyperparameters, by name.

    Args:
        parameters: name -> prior, None for no prior. ``lengthscale`` means all learned lengthscales
            of the model, ``kernel.kernels.0.lengthscale`` that of the first summand of its kernel.
            Parameters of any sign have their own name (``mean.constant``); most priors are of
            positive ones. A prior may be a distribution of torch of one variable, over all numbers
            or all positive ones, whose parameters are then constant; a batch of them, such as
            ``torch.distributions.Gamma(shapes, rates)``, has one for each entry.

    Raises:
        ConfigError: ``parameters`` is no mapping, or holds something else.

    Example::

        model.hyperpriors = Priors({"lengthscale": LogNormal(1.0, 3.0), "outputscale": Gamma(2, 1)})
    """

    optional: ClassVar[tuple[str, ...]] = ()
    """Names that a model need not have."""

    def __init__(self, parameters: Mapping[str, Prior | Distribution | None]) -> None:
        if not isinstance(parameters, Mapping):
            raise ConfigError(
                f"parameters={parameters} of priors: expected a prior for each name, such as "
                '{"lengthscale": LogNormal(1.0, 3.0)}'
            )
        self.parameters: dict[str, Prior] = {}
        for name, prior in parameters.items():
            if isinstance(prior, Prior):
                self.parameters[name] = prior
            elif _is_prior(prior):
                self.parameters[name] = _OfTorch(prior)
            elif prior is not None:
                raise ConfigError(
                    f"the prior of {name} is {prior!r}: expected one of gpx.priors, such as "
                    "LogNormal(median=1.0, factor=3.0), or a distribution of torch of one variable "
                    "over all numbers or all positive ones"
                )

    def construction(self) -> dict[str, Any] | None:
        """As in ``Prior``, with distributions of torch as they were given."""
        given = super().construction()
        if given is not None and "parameters" in given:
            priors = self.parameters.items()
            laws = {n: prior.law if isinstance(prior, _OfTorch) else prior for n, prior in priors}
            return {**given, "parameters": laws}
        return given

    def require(self, model: nn.Module, trained: Iterable[Tensor]) -> None:
        """Raise where priors do not fit the trained hyperparameters of ``model``.

        Args:
            trained: the parameters that are optimised.

        Raises:
            ConfigError: a name that none of them has.
            ShapeError: a batch of priors of another shape.
        """
        optimised = {id(parameter) for parameter in trained if parameter.requires_grad}
        self._require([e for e in _hyperparameters(model) if id(e.raw) in optimised], "learns")
        for _, each, prior in self.of(model):
            if isinstance(prior, _OfTorch):
                prior.require_shape(each.raw)

    def _require(self, known: Sequence[Hyperparameter], verb: str) -> None:
        shown = [each.name for each in known if each.constraint or each.name.startswith(_TOLD)]
        for name in self.parameters:
            if name not in self.optional and not any(_matches(name, each.name) for each in known):
                raise ConfigError(
                    f"there is a prior of {name}, and the model {verb} no such hyperparameter; it "
                    f"has {', '.join(shown) or 'none'}"
                )

    def log_prob(self, model: nn.Module, *, all_known: bool = True) -> Tensor:
        """Sum of the log densities () of the learned hyperparameters, with gradients; float64.

        Args:
            all_known: whether the model must have every hyperparameter that has a prior, learned or
                not; models that stand in for another one need not.

        Raises:
            ConfigError: it has not.
        """
        given = self.of(model)
        if all_known and len({name for name, _, _ in given}) < len(self.parameters):
            self._require(list(_hyperparameters(model)), "has")
        found = [prior.log_prob(each.value().double()).sum() for _, each, prior in given]
        return torch.stack(found).sum() if found else torch.zeros((), dtype=torch.float64)

    def of(self, model: nn.Module) -> list[tuple[str, Hyperparameter, Prior]]:
        """The learned hyperparameters of ``model`` that have a prior, with its name in
        ``parameters``; one with several priors is several times in it."""
        return [
            (name, each, prior)
            for each in _hyperparameters(model)
            if each.raw.requires_grad
            for name in self.parameters
            if _matches(name, each.name) and (prior := self._prior(name, model, each.name))
        ]

    def _prior(self, name: str, model: nn.Module, full: str) -> Prior | None:
        """The prior called ``name`` for the hyperparameter ``full`` of ``model``; None for none."""
        return self.parameters[name]


class DimensionScaled(Priors):
    """A log-normal prior of lengthscales that grows with the number of inputs, and one of noise.

    For d inputs in the unit cube log lengthscale ~ N(sqrt(2) + log(d) / 2, 3): distances grow as
    sqrt(d), and so do the lengthscales, so that the smoothness of prior functions does not depend
    on d. gpx standardises inputs to unit variance, at which a uniform input has width sqrt(12), so
    lengthscales here are longer by this factor. log noise variance ~ N(-4, 1), for targets of unit
    variance, if the likelihood has a noise variance.

    In a part of the kernel with ``active_dims`` d is their number, and in a product, whose factors
    multiply, that of all its factors together. Lengthscales without the unit of inputs
    (``Periodic``, ``Categorical``) have no prior.

    Args:
        num_inputs: d.

    Source: Hvarfner, Hellsten and Nardi 2024, as in the defaults of BoTorch.
    """

    optional = ("noise_variance",)

    def __init__(self, num_inputs: int) -> None:
        check_at_least(1, num_inputs=num_inputs)
        median = math.exp(math.sqrt(2.0)) * math.sqrt(12.0 * num_inputs)
        super().__init__(
            {
                "lengthscale": LogNormal(median, math.exp(math.sqrt(3.0))),
                "noise_variance": LogNormal(math.exp(-4.0), math.e),
            }
        )
        self.num_inputs = num_inputs

    def _prior(self, name: str, model: nn.Module, full: str) -> Prior | None:
        prior = self.parameters[name]
        if name != "lengthscale" or not isinstance(prior, LogNormal):
            return prior
        part, count, product = model, self.num_inputs, False
        for step in full.split(".")[:-1]:
            part = part.get_submodule(step)
            active = getattr(part, "active_dims", None)
            if not product:
                count = count if active is None else len(active)
            if not product and getattr(part, "multiplies", False):
                count, product = _num_columns(part, count), True
        if not getattr(part, "lengthscale_in_unit_of_x", True):
            return None
        return LogNormal(prior.median * math.sqrt(count / self.num_inputs), prior.factor)


def _num_columns(product: nn.Module, count: int) -> int:
    """Columns of the factors with a lengthscale in the unit of inputs; ``count``: of all."""
    columns: set[int] = set()
    for part in product.modules():
        unit = getattr(part, "lengthscale_in_unit_of_x", False)  # kernels only
        if not unit or getattr(part, "lengthscale", None) is None:
            continue
        active = getattr(part, "active_dims", None)
        if not isinstance(active, torch.Tensor):
            return count
        columns.update(active.tolist())
    return len(columns) or count


_TOLD = ("kernel.", "mean.", "likelihood.")
"""Parts of models whose parameters of any sign are told; variational ones are too many."""


class Hyperparameter(NamedTuple):
    """A parameter that may have a prior: positive, or of any sign without ``constraint``.

    Attributes:
        name: dotted, in the model.
        raw: what is trained.
        constraint: natural value of ``raw``.
    """

    name: str
    raw: Tensor
    constraint: Positive | None = None

    def value(self) -> Tensor:
        """Natural value; same shape as ``raw``."""
        return self.raw if self.constraint is None else self.constraint(self.raw)


def _hyperparameters(model: nn.Module) -> Iterator[Hyperparameter]:
    """Positive parameters of the model, then those of any sign; shared ones once."""
    seen: set[int] = set()
    positive = (Hyperparameter(*each) for each in positive_parameters(model))
    plain = (
        Hyperparameter(name, raw)
        for name, raw in model.named_parameters()
        if "parametrizations." not in name
    )
    for each in itertools.chain(positive, plain):
        if id(each.raw) not in seen:
            seen.add(id(each.raw))
            yield each


def _matches(name: str, full: str) -> bool:
    return full == name or full.endswith(f".{name}")
