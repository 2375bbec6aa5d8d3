"""What a prior of a hyperparameter is."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor


class Attributes:
    """An object whose arguments are attributes of the same names."""

    def construction(self) -> dict[str, Any] | None:
        """Every argument of the constructor by name, for the config in a run folder.

        None if one of them is no attribute of the same name.
        """
        names, own = inspect.signature(type(self)).parameters, vars(self)
        return {name: own[name] for name in names} if own.keys() >= names.keys() else None


class Prior(Attributes, ABC):
    """The density of a hyperparameter; subclasses define ``log_prob``."""

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of every entry of the natural value, of the same shape, or of all jointly."""
