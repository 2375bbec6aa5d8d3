"""Priors of a model's hyperparameters, by their names."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from gpx.constraints import Positive, positive_parameters
from gpx.errors import ConfigError
from gpx.priors.base import Attributes, Prior
from gpx.priors.of_torch import OfTorch, is_prior


class Priors(Attributes):
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
            elif is_prior(prior):
                self.parameters[name] = OfTorch(prior)
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
            laws = {n: prior.law if isinstance(prior, OfTorch) else prior for n, prior in priors}
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
        self._require([e for e in hyperparameters_of(model) if id(e.raw) in optimised], "learns")
        for _, each, prior in self.of(model):
            if isinstance(prior, OfTorch):
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
            self._require(list(hyperparameters_of(model)), "has")
        found = [prior.log_prob(each.value().double()).sum() for _, each, prior in given]
        return torch.stack(found).sum() if found else torch.zeros((), dtype=torch.float64)

    def of(self, model: nn.Module) -> list[tuple[str, Hyperparameter, Prior]]:
        """The learned hyperparameters of ``model`` that have a prior, with its name in
        ``parameters``; one with several priors is several times in it."""
        return [
            (name, each, prior)
            for each in hyperparameters_of(model)
            if each.raw.requires_grad
            for name in self.parameters
            if _matches(name, each.name) and (prior := self._prior(name, model, each.name))
        ]

    def _prior(self, name: str, model: nn.Module, full: str) -> Prior | None:
        """The prior called ``name`` for the hyperparameter ``full`` of ``model``; None for none."""
        return self.parameters[name]


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


def hyperparameters_of(model: nn.Module) -> Iterator[Hyperparameter]:
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
