"""Several Markov chains that are to agree."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

from torch import Tensor

from gpx.errors import ConfigError, class_name
from gpx.methods.base.chain import Chain, ModelT
from gpx.methods.base.objective import Facts
from gpx.sampling.convergence import MIN_DRAWS, agreement
from gpx.tensor_checks import check_at_least
from gpx.warned_line import users_line

LEAST_SAMPLES = 4
"""Fewest samples of a chain: a run does not end by its time budget before."""
MAX_RHAT = 1.05
"""R-hat above which the run warns; the literature asks for 1.01 for published results."""


class SeveralChains(Chain[ModelT]):
    """Chains that start at different places, so that R-hat says whether they have converged.

    Args:
        chains: number C of chains.
        burn_in: steps before the first sample; half of the steps of a run that is too short.
        iterations: steps after burn-in.
        thin: steps between samples.

    Raises:
        ConfigError: an option out of range.
    """

    def __init__(self, chains: int, burn_in: int, iterations: int, thin: int) -> None:
        check_at_least(0, burn_in=burn_in)
        check_at_least(1, chains=chains, thin=thin)
        if iterations < thin:
            raise ConfigError(f"iterations={iterations} must be at least thin={thin}")
        self.chains, self.thin = chains, thin
        self.burn_in, self.iterations = burn_in, iterations
        self.asked = burn_in + iterations
        self.most_samples = 2 * max(LEAST_SAMPLES, iterations // thin)

    def serves(self, step: int) -> bool:
        """Whether a chain has at least ``LEAST_SAMPLES`` samples after this step."""
        return step >= self.burn_in + LEAST_SAMPLES * self.thin

    def max_steps(self, limit: int) -> int:
        """Burn-in plus iterations, at most ``limit``; shortens burn-in and warns if necessary."""
        if limit < self.burn_in + self.thin:
            wanted, asked = self.burn_in, max(LEAST_SAMPLES, self.iterations // self.thin)
            self.burn_in = limit // 2
            left = limit - self.burn_in
            self.thin = max(1, min(self.thin, left // LEAST_SAMPLES), left // asked)
            self.cut = True
            warnings.warn(
                f"max_steps={limit} ends before the first sample after a burn-in of {wanted} "
                f"steps: burn-in takes {self.burn_in} steps, then every {self.thin}. state is "
                "kept; raise max_steps for settled chains",
                stacklevel=users_line(),
            )
        return min(limit, self.asked)

    def every_second(self, kept: Tensor) -> Tensor:
        """Of stored states (samples * chains, ...), those of every second sample."""
        return kept.unflatten(0, (-1, self.chains))[1::2].flatten(0, 1).clone()

    def agreement_of(self, groups: Mapping[str, Tensor]) -> Facts:
        """Largest R-hat and smallest bulk effective sample size of each group of quantities.

        Of fewer than ``MIN_DRAWS`` steps neither is defined: ``convergence`` then says so.

        Args:
            groups: name -> states (T * chains, ...) of all chains at T steps.
        """
        found: Facts = {}
        for name, kept in groups.items():
            states = kept.reshape(-1, self.chains, math.prod(kept.shape[1:]))
            if len(states) < MIN_DRAWS:
                return {"convergence": self._too_few(len(states))}
            convergence = agreement(states)
            if convergence is not None:
                found[f"rhat_{name}"], found[f"effective_samples_{name}"] = convergence
        return found

    def _too_few(self, count: int) -> str:
        whose = f"of each of the {self.chains} chains " if self.chains > 1 else ""
        which = "they have" if self.chains > 1 else "the chain has"
        samples = "1 sample" if count == 1 else f"{count} samples"
        verb = "is" if count == 1 else "are"
        return (
            f"{samples} {whose}{verb} too few to say whether {which} converged: R-hat needs "
            f"{MIN_DRAWS}"
        )

    def warn_unless_converged(self, diagnostics: Facts, count: int) -> None:
        """Warn if an R-hat of ``agreement_of``, from ``count`` steps, is above ``MAX_RHAT``, or
        there is none because these are too few."""
        reductions = [float(v) for name, v in diagnostics.items() if name.startswith("rhat")]
        worst = max(reductions, default=1.0)
        if "convergence" in diagnostics:
            found = str(diagnostics["convergence"])
        elif worst <= MAX_RHAT:
            return
        else:
            found = (
                f"the {self.chains} chains have" if self.chains > 1 else "the chain has"
            ) + f" not converged: the largest R-hat is {worst:.3f}, expected below {MAX_RHAT}"
        name = class_name(self)
        warnings.warn(
            f"{found}; raise {name}.burn_in and {name}.iterations",
            stacklevel=users_line(),
        )
