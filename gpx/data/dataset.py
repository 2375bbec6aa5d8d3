"""A split, standardised data set, ready for training."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpx.data.columns.coding import Coding
from gpx.data.hints import row_counter, skewed_target
from gpx.data.labels import Label, Task, encode_targets
from gpx.data.source import DataSource, Rows
from gpx.data.standardiser import Standardiser
from gpx.data.table import Table
from gpx.data.target_transform import TargetTransform, require_positive
from gpx.errors import DataError
from gpx.likelihoods.row_noise import RowNoise

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dataset:
    """Training and test rows of one split, standardised with training statistics only.

    Attributes:
        name: of the data set.
        split: which split.
        task: "regression", "binary", "multiclass" or "count".
        train_x (n, d), train_y (n,), test_x (t, d), test_y (t,): float64, targets (n, p) and
            (t, p) where there are p > 1. Inputs are standardised for every task, targets for
            regression only; binary targets are -1 or 1, classes 0..C-1, counts as they are.
        scaler: carries predictions back to the data's own units.
        input_names, target_name: in the order of the columns.
        labels: for classes, the original label of each class, ascending; otherwise empty.
        notes: traps of this data set, to print beside results on it.
        checksums: SHA-256 of the files read.
        target_names: for several outputs, the name of each; otherwise empty.
        sample: inputs and targets of random training rows where train_x and train_y are
            ``gpx.lazy_rows.LazyRows``, rows of files; None where they are tensors.
        facts: plain values for the record of a run.
        coding: how the inputs are made of the columns of a table; None: they are its columns.
        target_transform: what a model sees the targets through; the targets here are standardised
            as without it. None: they are modelled as they are.
        train_noise, test_noise: what is known of the noise of each row, standardised; None:
            nothing.
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
    train_noise: RowNoise | None = None
    test_noise: RowNoise | None = None

    @property
    def in_memory(self) -> Dataset:
        """A copy whose training rows are the sample; itself where they are tensors already."""
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
    def num_classes(self) -> int:
        """Number of classes; 0 where targets are not classes."""
        return len(self.labels)

    def modelled(self, y: Tensor) -> Tensor:
        """Standardised targets (n,) -> what a model of them is trained on."""
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


def load(source: DataSource, *, task: Task) -> Dataset:
    """Read, split and standardise a data set.

    Statistics (mean and population standard deviation) come from the training rows alone. A column
    that is constant over the training rows is centred and left unscaled, with a warning in the log.
    A table with ``input_unit`` has its inputs divided by it instead.

    Args:
        source: where the rows come from and which split is wanted.
        task: of the likelihood; decides how targets are treated.

    Raises:
        DataError: the data are missing or malformed, the split does not exist, or the targets do
            not fit the task.

    Cost: O(nd) time and a few copies of the data.
    """
    made = source.dataset(task)
    if made is not None:
        return made
    table = source.table()
    train, test = source.split_rows(table)
    targets, labels = encode_targets(table, task)
    coding, inputs = table.coding, table.x
    input_names, unscaled = table.input_names, table.labels
    if coding is not None:
        coding, inputs = coding.fitted(table.x, train, table.where)
        input_names, unscaled = coding.input_names, coding.unscaled
    x, y = torch.from_numpy(inputs), torch.from_numpy(targets)
    train_x, train_y = x[torch.from_numpy(train)], y[torch.from_numpy(train)]
    test_x, test_y = x[torch.from_numpy(test)], y[torch.from_numpy(test)]
    scaler, constant = Standardiser.fit(train_x, train_y, scale_targets=task == "regression")
    if table.input_unit is None:
        names = (*input_names, *(table.target_names or (table.target_name,)))
        warn_of_constants(table.where, names, len(input_names), constant.numpy())
    else:
        scaler.input_mean.zero_()
        scaler.input_scale.fill_(table.input_unit)
    for column in unscaled:
        scaler.input_mean[column], scaler.input_scale[column] = 0.0, 1.0
    return Dataset(
        name=table.name,
        split=source.split,
        task=task,
        train_x=scaler.transform_inputs(train_x),
        train_y=scaler.transform_targets(train_y),
        test_x=scaler.transform_inputs(test_x),
        test_y=scaler.transform_targets(test_y),
        scaler=scaler,
        input_names=input_names,
        target_name=table.target_name,
        labels=labels,
        coding=coding,
        target_transform=_target_transform(table, train, task),
        train_noise=_row_noise(table, train, scaler, task),
        test_noise=_row_noise(table, test, scaler, task),
        notes=_notes(source, table, train, task),
        checksums=dict(table.checksums),
        target_names=table.target_names,
    )


def _notes(source: DataSource, table: Table, train: Rows, task: Task) -> str:
    """What is known of the data set, and hints about options of its source that are not used."""
    notes = [table.notes]
    if getattr(source, "id", "") is None:
        notes.append(row_counter(table.x, table.input_names))
    plain = table.noise is None and table.weights is None and not table.target_names
    if task == "regression" and plain and getattr(source, "target_transform", "") is None:
        notes.append(skewed_target(table.y[train], table.target_name))
    return "; ".join(filter(None, notes))


def _target_transform(table: Table, train: Rows, task: Task) -> TargetTransform | None:
    """Fitted on training targets.

    Raises:
        DataError: the targets are not one number, or have no logarithm that is asked for.
    """
    kind = table.target_transform
    if kind is None:
        return None
    if task != "regression" or table.target_names:
        raise DataError(
            f"{table.where}: target_transform={kind} is for one target that is a number; leave it "
            "out"
        )
    if table.noise is not None or table.weights is not None:
        raise DataError(
            f"{table.where}: noise= and weights= speak of the noise of the targets themselves, "
            f"which target_transform={kind} makes another one; leave one of them out"
        )
    require_positive(table, kind)
    return TargetTransform.fitted(kind, table.y[train])


def _row_noise(table: Table, rows: Rows, scaler: Standardiser, task: Task) -> RowNoise | None:
    """What is known of the noise of some rows, in standardised units.

    Raises:
        DataError: the targets are not one real number.
    """
    if table.noise is None and table.weights is None:
        return None
    if task != "regression" or table.target_names:
        raise DataError(
            f"{table.where}: noise= and weights= are about the Gaussian noise of one number, which "
            "this target is not; leave them out"
        )
    ones = np.ones(len(rows))
    known = 0.0 * ones if table.noise is None else table.noise[rows]
    relative = ones if table.weights is None else 1.0 / table.weights[rows]
    return RowNoise(
        torch.from_numpy(known) / scaler.target_scale.square(), torch.from_numpy(relative)
    )


def warn_of_constants(
    where: str, names: Sequence[str], num_inputs: int, constant: NDArray[np.bool_]
) -> None:
    """Log which columns are constant over the training rows.

    Args:
        where: the data are, for people.
        names: of the inputs, then of the targets.
        num_inputs: d.
        constant (d + p,): which columns are.
    """
    columns = np.flatnonzero(constant[:num_inputs])
    if len(columns):
        named = ", ".join(f"{c + 1} ({names[int(c)]!r})" for c in columns)
        logger.warning(
            "%s: constant over the training rows, so centred but not scaled: input column %s",
            where,
            named,
        )
    for target in np.flatnonzero(constant[num_inputs:]):
        logger.warning(
            "%s: constant over the training rows, so centred but not scaled: the target %r",
            where,
            names[num_inputs + int(target)],
        )
