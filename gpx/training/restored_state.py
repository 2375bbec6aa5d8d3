"""The state of an optimiser of torch, restored from a run that may have had other settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpx.training.algorithms import options_of


def restore_state(
    optimiser: torch.optim.Optimizer,
    stored: dict[str, Any] | None,
    setting: Mapping[str, Any],
    before: Mapping[str, Any] | None,
) -> bool:
    """Restore moments of the same algorithm; rates and options are those of ``setting``.

    Args:
        optimiser: made with ``setting``.
        stored: its ``state_dict`` in the checkpoint; None: there is none.
        setting: of this run: algorithm, rate and options.
        before: those of the run that wrote the checkpoint; None: not known, and taken to be of the
            same algorithm.

    Returns:
        False if ``stored`` is of another algorithm or of other parameters; nothing is restored.
    """
    if stored is None:
        return False
    own = [{k: v for k, v in g.items() if k != "params"} for g in optimiser.param_groups]
    algorithm = setting.get("algorithm", "adam")
    same = before is not None and before.get("algorithm", "adam") == algorithm
    groups = stored["param_groups"]
    if not (same or before is None) or len(groups) != len(own):
        return False
    for mine, group, now in zip(own, groups, optimiser.param_groups, strict=True):
        if not mine.keys() <= group.keys() or len(group["params"]) != len(now["params"]):
            return False
    optimiser.load_state_dict(stored)
    for group, mine in zip(optimiser.param_groups, own, strict=True):
        # torch restores the settings of the stopped run; other entries are state of a class that
        # keeps some in its groups
        if before == setting:
            mine = {k: v for k, v in mine.items() if k == "fused"}  # depends on the device
        elif same:
            names = {"lr", *options_of(type(optimiser))}
            mine = {k: v for k, v in mine.items() if k in names}
        group.update(mine)
        for parameter in group["params"] if group.get("amsgrad") else ():
            moments = optimiser.state.get(parameter)
            if moments:  # of a run without it
                moments.setdefault("max_exp_avg_sq", moments["exp_avg_sq"].clone())
    return True
