"""A network with random layers as a model."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from gpx.errors import ConfigError, class_name
from gpx.inference.float32_digits import warn_of_few_digits
from gpx.inference.variational import GAUSSIAN
from gpx.kernels import ArcCosine
from gpx.likelihoods.base import Likelihood
from gpx.linalg.cholesky import noted_checks
from gpx.methods.base.model import Model
from gpx.methods.base.model_checks import are_placed
from gpx.methods.base.posterior import Marginals
from gpx.methods.deep.additive_grid import AdditiveGridLayer
from gpx.methods.deep.draws import Draws, drawing, draws_of, random_layers, total_kl
from gpx.methods.deep.features import LearnedFeatures
from gpx.methods.deep.inducing_layer import InducingLayer
from gpx.methods.deep.layer import GPLayer
from gpx.methods.deep.network import Network
from gpx.methods.deep.posterior import NetworkPosterior
from gpx.sampling.batches import some_rows
from gpx.tensor_checks import check_at_least

PLACING_ROWS = 2048
"""Most rows that place inducing points, or twice the points if these are more."""


class NetworkModel(Model):
    """A random network whose outputs are the latent functions of any likelihood.

    There is no kernel of the inputs; every Gaussian process layer has its own. Any network with
    random layers of ``gpx.methods.deep`` can be used::

        body = nn.Sequential(nn.Linear(8, 32), nn.Tanh())
        model = NetworkModel(Network(body, GPLayer(RBF(), 32)), Gaussian(), num_inputs=8)

    Args:
        network: its head has one output for each latent function of the likelihood.
        likelihood: any.
        num_inputs: d.
        predict_samples: number of draws of the network that a prediction averages; a single one is
            used if only the head is random and has closed-form marginals.
        seed: of the draws in predictions.

    Raises:
        ConfigError: sizes below one; in training: parameters below features that are steps, or
            inducing points that have not been placed.
    """

    kernel_of_inputs = False
    takes_row_noise = True
    takes_draws: ClassVar[bool] = True
    """Whether ``sample_latents`` and ``sample_marginals`` take ``draws``."""
    _num_inputs: int  # a network always knows it

    def __init__(
        self,
        network: Network,
        likelihood: Likelihood,
        *,
        num_inputs: int,
        predict_samples: int = 50,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_at_least(1, predict_samples=predict_samples, num_inputs=num_inputs)
        self.network, self.likelihood = network, likelihood
        self.predict_samples, self.seed = predict_samples, seed
        self._num_inputs = num_inputs

    @property
    def fixed_shapes(self) -> bool:  # type: ignore[override]
        """As in ``Model``: if all modules are of torch or gpx, without hooks.

        Others may count their calls, which a recorded step would not repeat.
        """
        return all(_repeats(module) for module in self.modules())

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the likelihood."""
        return self.likelihood.num_outputs

    def sample_latents(
        self,
        x: Tensor,
        num: int = 1,
        *,
        generator: torch.Generator | None = None,
        draws: Draws | None = None,
    ) -> Tensor:
        """Draws of f at x (B, d) under q: (num, B), or (num, B, p) for p latent functions.

        Rows are drawn independently: the marginals are those of q, not the joint distribution.

        Args:
            draws: where random numbers come from; None: from ``generator``.
        """
        self._require_slopes()
        self._require_placed()
        with drawing(self.network, draws or Draws(generator)):
            f = self.network.samples(x, num)
        return f.squeeze(2) if self.likelihood.num_latents == 1 else f

    def sample_marginals(
        self,
        x: Tensor,
        num: int = 1,
        *,
        generator: torch.Generator | None = None,
        draws: Draws | None = None,
    ) -> Marginals:
        """Marginals of f at x (B, d) given draws of lower layers: (num, B) or (num, B, p) each.

        Args:
            draws: as for ``sample_latents``.
        """
        self._require_slopes()
        self._require_placed()
        with drawing(self.network, draws or Draws(generator)):
            found = self.network.sample_marginals(x, num)
        if self.likelihood.num_latents > 1:
            return found
        return Marginals(*(part.squeeze(2) for part in found))

    def check(self, x: Tensor) -> None:
        """As in ``Model``; also that every trained parameter gets gradients from the data."""
        self._require_slopes()
        super().check(x)

    def _require_slopes(self) -> None:
        """Raise ConfigError if the features of a layer are steps, and what is below is trained.

        Not in the constructor, so that runs trained before this was refused can be loaded.
        """
        for layer in self.network.modules():
            if not isinstance(layer, GPLayer) or not isinstance(layer.kernel, ArcCosine):
                continue
            if layer.kernel.order:
                continue
            below = _modules_before(layer, self.network.body)
            if layer is self.network.head:
                below = [self.network.body]
            if isinstance(layer.features, LearnedFeatures):
                below.append(layer.features.frequencies)
            if any(p.requires_grad for module in below for p in module.parameters()):
                raise ConfigError(
                    "the features of ArcCosine(0) are steps, which have no derivative, so that "
                    "the layers or frequencies below them would not be trained: take order 1 or 2"
                )

    def kl(self) -> Tensor:
        """KL(q || p) of all random layers in nats; ()."""
        return total_kl(self.network)

    @property
    def kl_known(self) -> bool:
        """Whether ``kl`` is exact; with dropout it is known only up to a constant."""
        return all(layer.known_kl for layer in random_layers(self.network))

    def _require_placed(self) -> None:
        """Raise ConfigError if a layer has its inducing points where they were made, at zero.

        As in ``gpx.methods.base.model_checks.check_placed``.
        """
        if noted_checks() is not None:
            return
        for layer in self.network.modules():
            if isinstance(layer, InducingLayer) and not are_placed(layer.inducing):
                raise ConfigError(
                    f"an InducingLayer of {class_name(self)} has {len(layer.inducing)} inducing "
                    "points that have not been placed; before training call model.initialise(x, y, "
                    "generator=torch.Generator().manual_seed(0)), or place() of the layer with its "
                    "inputs"
                )

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> NetworkPosterior:
        """The posterior process of the trained q; the data are not used."""
        self._warn_of_few_digits()
        return self.new_posterior()

    def _warn_of_few_digits(self) -> None:
        """Warn of Gaussian noise that float32 loses beside the variance of the last layer."""
        head = self.network.head
        if isinstance(head, InducingLayer) and isinstance(self.likelihood, GAUSSIAN):
            # its inducing points lie among its inputs
            warn_of_few_digits(head.kernel, self.likelihood.noise_variance, head.inducing)

    def new_posterior(self) -> NetworkPosterior:
        """As in ``Model``."""
        return NetworkPosterior(
            copy.deepcopy(self.network),
            num_inputs=self._num_inputs,
            num_latents=self.likelihood.num_latents,
            num_samples=self.predict_samples,
            seed=self.seed,
        )

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by role.

        ``hyperparameters``: of kernels, mean functions and likelihood; ``inducing``: inducing
        points, if any; ``variational``: all other parameters of the network.
        """
        hyper: list[nn.Parameter] = []
        inducing: list[nn.Parameter] = []
        for layer in self.network.modules():
            if isinstance(layer, (GPLayer, AdditiveGridLayer)):
                hyper += layer.kernel.parameters()
            elif isinstance(layer, InducingLayer):
                hyper += [*layer.kernel.parameters(), *layer.mean.parameters()]
                inducing.append(layer.inducing)
        grouped = {id(p) for p in (*hyper, *inducing)}
        rest = [p for p in self.network.parameters() if id(p) not in grouped]
        return {
            "variational": rest,
            **({"inducing": inducing} if inducing else {}),
            "hyperparameters": [
                *(p for p in hyper if p.requires_grad),
                *self.likelihood.parameters(),
            ],
        }

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Draw initial parameters, and place inducing points among the inputs of their layers.

        Learned frequencies already are a draw from their prior, and points that have been placed
        stay where they are.

        Raises:
            DataError: a layer has more inducing points than there are rows.
        """
        self._draw_start(y, generator)
        self._place_layers(x, generator)

    def _draw_start(self, y: Tensor, generator: torch.Generator) -> None:
        """``initialise`` without inducing points, for subclasses that place them."""
        self.likelihood.start(y)
        modules = list(self.network.modules())
        placed = {id(m.frequencies) for m in modules if isinstance(m, LearnedFeatures)}
        for layer in random_layers(self.network):
            if id(layer) not in placed:
                layer.draw_start(generator)

    @torch.no_grad()
    def _place_layers(self, x: Tensor, generator: torch.Generator) -> None:
        """Place the inducing points of every layer, in a pass of some rows through the network.

        A layer is placed where its inputs arrive first, so that later ones see its outputs.
        """
        layers = [
            layer
            for layer in self.network.modules()
            if isinstance(layer, InducingLayer) and not are_placed(layer.inducing)
        ]
        if not layers:
            return
        waiting = {id(layer) for layer in layers}

        def place(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
            if id(layer) in waiting and inputs:
                waiting.remove(id(layer))
                assert isinstance(layer, InducingLayer)
                layer.place(inputs[0], generator=generator)

        most = max(PLACING_ROWS, *(2 * len(layer.inducing) for layer in layers))
        rows = x if len(x) <= most else x[some_rows(x, most, generator)]
        hooks = [layer.register_forward_pre_hook(place) for layer in layers]
        try:
            with draws_of(self.network, generator):
                self.network(rows)
        finally:
            for hook in hooks:
                hook.remove()


def _modules_before(layer: nn.Module, body: nn.Module) -> list[nn.Module]:
    """Modules whose outputs reach ``layer`` within a body; known of ``nn.Sequential`` only."""
    if not isinstance(body, nn.Sequential):
        return []
    parts = list(body)
    for number, part in enumerate(parts):
        if any(module is layer for module in part.modules()):
            return [*parts[:number], *_modules_before(layer, part)]
    return []


def _repeats(module: nn.Module) -> bool:
    """Whether a module does the same at every call."""
    hooks = (
        *(module._forward_hooks, module._forward_pre_hooks),
        *(module._backward_hooks, module._backward_pre_hooks),
    )
    hooked = any(hooks) or "forward" in vars(module)  # or its forward is another function
    # torch makes a class for modules with parametrised attributes
    kind = type(module).__base__ if is_parametrized(module) else type(module)
    known = kind is not None and kind.__module__.split(".")[0] in ("torch", "gpx")
    return known and not hooked and getattr(module, "repeats", True)
