"""A split, standardised data set, ready for training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gpx.data.columns.coding import Coding
from gpx.data.labels import Label, Task
from gpx.data.standardiser import Standardiser
from gpx.data.target_transform import TargetTransform
from gpx.likelihoods.row_noise import RowNoise


@dataclass(frozen=True)
class Dataset:
    """Training and test rows of one split, standardised with training statistics only.

    Attributes:
        name: of the data set.
        split: number of the split.
        task: of the likelihood, see ``gpx.likelihoods.Likelihood``.
        train_x (n, d), train_y (n,), test_x (t, d), test_y (t,): float64; targets are (n, p) and
            (t, p) with p > 1 targets, NaN where one of these is missing. Inputs are always
            standardised, targets only for regression; binary targets are -1 or 1, classes 0..C-1,
            counts unchanged.
        scaler: converts predictions to the data's own units.
        input_names, target_name: in the order of the columns.
        labels: for classes, the original label of each class, ascending; otherwise empty.
        notes: peculiarities of the data set, printed beside its results.
        checksums: SHA-256 of the files read.
        target_names: for several outputs, the name of each; otherwise empty.
        sample: inputs and targets of random training rows, if train_x and train_y are rows in
            files (``gpx.lazy_rows.LazyRows``); None if they are tensors.
        facts: plain values for metrics.json.
        coding: how inputs are computed from the columns of a table; None: they are its columns.
        target_transform: transform through which targets are to be modelled; train_y and test_y are
            standardised, but not transformed. None: no transform.
        derivatives: for each target after the first the number of the input by which it is the
            derivative of the first; empty: they are no derivatives.
        train_noise, test_noise: known noise of each row, standardised; None: unknown.
    """

    name: str
    split: int
    task: Task
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    scaler: Standardiser
    input_names: tuple[str, ...]
    target_name: str
    labels: tuple[Label, ...] = ()
    notes: str = ""
    checksums: Mapping[str, str] = field(default_factory=dict)
    target_names: tuple[str, ...] = ()
    sample: tuple[Tensor, Tensor] | None = None
    facts: Mapping[str, int | float] = field(default_factory=dict)
    coding: Coding | None = None
    target_transform: TargetTransform | None = None
    derivatives: tuple[int, ...] = ()
    train_noise: RowNoise | None = None
    test_noise: RowNoise | None = None

    @property
    def in_memory(self) -> Dataset:
        """A copy whose training rows are the sample; the data set itself if they are tensors."""
        if self.sample is None:
            return self
        x, y = self.sample
        return dataclasses.replace(self, train_x=x, train_y=y, sample=None)

    @property
    def num_train(self) -> int:
        """Number of training rows n."""
        return self.train_x.shape[0]

    @property
    def num_test(self) -> int:
        """Number of test rows."""
        return self.test_x.shape[0]

    @property
    def num_inputs(self) -> int:
        """Number of inputs d."""
        return self.train_x.shape[1]

    @property
    def num_outputs(self) -> int:
        """Number of targets p."""
        return len(self.target_names) or 1

    @property
    def missing_targets(self) -> int:
        """Number of missing cells of the training targets; 0 for rows in files."""
        return 0 if self.sample is not None else int(self.train_y.isnan().sum())

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 if targets are not classes."""
        return len(self.labels)

    def modelled(self, y: Tensor) -> Tensor:
        """Standardised targets (n,) -> targets that a model is trained on (transformed or not)."""
        if self.target_transform is None:
            return y
        return self.target_transform(self.scaler.original_mean(y)).to(y)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Dataset:
        """A copy with inputs and targets on a device; the scaler stays in float64 on the CPU."""
        return dataclasses.replace(
            self,
            train_x=self.train_x.to(device, dtype),
            train_y=self.train_y.to(device, dtype),
            test_x=self.test_x.to(device, dtype),
            test_y=self.test_y.to(device, dtype),
            sample=self.sample
            and (
                self.sample[0].to(device, dtype),
                self.sample[1].to(device, dtype),
            ),
        )
