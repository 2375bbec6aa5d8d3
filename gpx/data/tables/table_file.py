"""Tables in files, one row per observation, columns by name or number."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpx.data.columns.choice import Choice, as_list, find_column
from gpx.data.columns.coding import Coding, Missing, Unseen
from gpx.data.columns.delimited import Layout, sniff
from gpx.data.columns.frame import Frame, read_frame
from gpx.data.columns.numbers import numbered_names
from gpx.data.folders import checksums, under
from gpx.data.source import DataSource
from gpx.data.table import Table
from gpx.data.tables.column_options import ColumnOptions, GivenRows, table_of
from gpx.errors import ConfigError, DataError

AUTO, KERNEL = "auto", "kernel"


class TableFile(DataSource):
    """A table in a file; a subclass says how such a file is read.

    Inputs that are texts become one input per category, dates become days since 1970-01-01 (UTC,
    ``gpx.data.columns.dates``); what the training rows say of them is kept with the trained model.

    Args:
        path: of the file.
        target: name of the target's column, or its number counting from 0, negative from the end
            (-1 is the last), or a list of several; None is the last. Texts are classes.
        inputs: name or number of the input column, or a list of them, in this order; None is all
            but the targets and ``id``.
        header: whether the first line names the columns; None finds out.
        split, test_fraction, root, split_seed: as for every source; a relative ``path`` is looked
            for in ``root`` when that is given.
        test_path: a file of rows to test on, with the same columns; None: a fold of the rows.
        missing: what becomes of missing values: ``refuse``, ``drop`` (the row is left out) or
            ``mean`` (the training mean, and an input that says so); see ``Coding``. Cells of
            several targets may be empty unless it is ``drop``: they stay missing (NaN), and rows
            without any target are left out.
        categories: columns of categories; ``auto``: those whose cells are texts; ``kernel``: the
            same, which the kernel of a run then compares (``gpx.runs.categorical_kernel``).
        dates: columns of dates; ``auto``: those most of whose cells look like ISO dates.
        date_format: of other dates, as for ``datetime.strptime``.
        unseen: a category that no training row has: ``apart`` or ``refuse``; see ``Coding``.
        max_categories: different texts that a column may have in training rows.
        id: name or number of a column that names the rows: no input, and carried through to
            predictions.
        noise: column of the variance of each target's noise, in its squared unit, where that is
            known (0: none beyond what is learned for all rows). ``ExactGP`` and ``SubsetOfData``
            take it.
        weights: column of how many rows each one stands for: its noise variance is the learned one
            over that. The same models take it.
        target_transform: what a target is modelled through: ``log``, ``boxcox``, ``quantile`` or
            None; see ``gpx.data.target_transform.TargetTransform``.

    Raises:
        ConfigError: options that are none or contradict each other.
    """

    def __init__(
        self,
        path: str,
        target: Choice | Sequence[Choice] | None = None,
        inputs: Choice | Sequence[Choice] | None = None,
        header: bool | None = None,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
        test_path: str | None = None,
        missing: Missing = "refuse",
        categories: Choice | Sequence[Choice] = AUTO,
        dates: Choice | Sequence[Choice] = AUTO,
        date_format: str | None = None,
        unseen: Unseen = "apart",
        max_categories: int = 100,
        id: Choice | None = None,
        noise: Choice | None = None,
        weights: Choice | None = None,
        target_transform: str | None = None,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        self.path = path
        self.targets = [-1] if target is None else as_list(target)
        self.inputs = None if inputs is None else as_list(inputs)
        self.header = header
        self.test_path = test_path
        if test_path is not None and split != 0:
            raise ConfigError(f"split={split}: test_path= gives the test rows, there is one split")
        self.categories = None if categories in (AUTO, KERNEL) else as_list(categories)
        self.dates = None if dates == AUTO else as_list(dates)
        self.id, self.noise, self.weights = id, noise, weights
        self.target_transform = target_transform
        self.date_format = date_format
        self.policies = Coding((), missing, unseen, max_categories=max_categories)

    @abstractmethod
    def layout(self, path: Path) -> Layout:
        """Names of the columns of a file; raises DataError."""

    @abstractmethod
    def frame(self, layout: Layout, columns: Sequence[int], texts: bool = False) -> Frame:
        """Some of its columns; ``texts``: as they are written, not as numbers."""

    def table(self) -> Table:
        """All rows.

        Raises:
            DataError: one sentence with file, line and column; see the tests for every case.
        """
        layout = self.layout(under(self.root, self.path))
        if layout.width < 2:
            raise DataError(
                f"{layout.path} has one column, expected inputs and a target separated by "
                "comma, semicolon, tab or white space"
            )
        if not self.targets:
            raise DataError(f"{layout.path}: target=[] names no column, expected one")
        roles = {"target": [find_column(layout, c) for c in self.targets]}
        for name, column in (("id", self.id), ("noise", self.noise), ("weights", self.weights)):
            if column is not None:
                roles[name] = [find_column(layout, column)]
        if self.inputs is None:
            taken = {i for columns in roles.values() for i in columns}
            roles["inputs"] = [i for i in range(layout.width) if i not in taken]
        else:
            roles["inputs"] = [find_column(layout, c) for c in self.inputs]
        _require_different(layout, roles)
        options = self._options(layout, roles)
        names = tuple(layout.names[i] for i in roles["target"])
        if not layout.header_line:
            names = numbered_names(len(names), "y") if len(names) > 1 else ("y",)
        files, test = [layout.path], None
        if self.test_path is not None:
            other = self.layout(under(self.root, self.test_path))
            if other.path.resolve() == layout.path.resolve():
                warnings.warn(
                    f"test_path={self.test_path} is path= itself: its rows are trained on and "
                    "tested on, so that metrics say nothing of new rows; give other rows, or leave "
                    "it out for a fold of these",
                    stacklevel=2,
                )
            there = {role: _same_columns(layout, other, columns) for role, columns in roles.items()}
            test = self._rows(other, there, options, names)
            files.append(other.path)
        return table_of(
            self._rows(layout, roles, options, names),
            test,
            options,
            name=layout.path.name.removesuffix(".gz").rsplit(".", 1)[0],
            origin=str(layout.path),
            checksums=checksums(files),
            target_transform=self.target_transform,
        )

    def _options(self, layout: Layout, roles: Mapping[str, list[int]]) -> ColumnOptions:
        """The policies with columns by the names they have in the file."""

        def named(columns: list[Choice] | None) -> tuple[str, ...] | None:
            if columns is None:
                return None
            return tuple(layout.names[find_column(layout, column)] for column in columns)

        policies = replace(
            self.policies,
            identifier=layout.names[roles["id"][0]] if "id" in roles else None,
            noise=layout.names[roles["noise"][0]] if "noise" in roles else None,
        )
        return ColumnOptions(policies, named(self.categories), named(self.dates), self.date_format)

    def _rows(
        self,
        layout: Layout,
        roles: Mapping[str, list[int]],
        options: ColumnOptions,
        target_names: tuple[str, ...],
    ) -> GivenRows:
        texts = bool(options.categories or options.dates)
        read = [role for role in ("inputs", "target", "noise", "weights") if role in roles]
        frame = self.frame(layout, [i for role in read for i in roles[role]], texts)
        parts, start = {}, 0
        for role in read:
            stop = start + len(roles[role])
            parts[role], start = frame.select(range(start, stop)), stop
        target = parts["target"].renamed(target_names)
        return GivenRows(parts["inputs"], target, parts.get("noise"), parts.get("weights"))


class CSVFile(TableFile):
    """A delimited text file, gzipped or not: one row per observation; options as for ``TableFile``.

    Comma, semicolon, tab or white space between columns and a header line are recognised. The words
    true and false count as 1 and 0.
    """

    def layout(self, path: Path) -> Layout:
        """Delimiter and names."""
        return sniff(path, self.header)

    def frame(self, layout: Layout, columns: Sequence[int], texts: bool = False) -> Frame:
        """Some columns, line by line where they are no plain numbers."""
        return read_frame(layout, columns, texts)


def _require_different(layout: Layout, roles: Mapping[str, list[int]]) -> None:
    """Raise DataError where a column is to be two things."""
    taken: set[int] = set()
    for role in ("inputs", "target", "id", "noise", "weights"):
        for column in roles.get(role, ()):
            if column in taken:
                said = (
                    "is asked for twice among inputs= and target="
                    if role in ("inputs", "target")
                    else f"is {role}= and something else too"
                )
                raise DataError(
                    f"{layout.path}: {layout.column(column)} {said}, expected different columns"
                )
            taken.add(column)


def _same_columns(layout: Layout, other: Layout, columns: list[int]) -> list[int]:
    """Where another file has columns of the first: by name, or by number without names."""
    if layout.header_line and other.header_line:
        return [find_column(other, layout.names[i]) for i in columns]
    if bool(layout.header_line) != bool(other.header_line) or layout.width != other.width:
        raise DataError(
            f"{other.path} has {_described(other)}, and {layout.path} {_described(layout)}; "
            "expected the same in the file of test_path="
        )
    return columns


def _described(layout: Layout) -> str:
    return f"{layout.width} columns with{'' if layout.header_line else 'out'} names"
