"""Tables in files, with one row per observation and columns by name or number."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from gpx.data.columns.choice import Choice, as_list, find_column, require_different
from gpx.data.columns.coding import Coding, Missing, Unseen, Unusable
from gpx.data.columns.delimited import Layout, sniff
from gpx.data.columns.frame import Frame, read_frame
from gpx.data.columns.numbers import numbered_names
from gpx.data.folders import checksums, under
from gpx.data.source import DataSource
from gpx.data.table import Table
from gpx.data.tables.column_options import ColumnOptions, GivenRows, table_of
from gpx.errors import ConfigError, DataError
from gpx.tensor_checks import check_one_of
from gpx.warned_line import users_line

AUTO, KERNEL = "auto", "kernel"


class TableFile(DataSource):
    """A table in a file; a subclass reads files of one format.

    Texts become one input per category, and dates become days since 1970-01-01 (UTC,
    ``gpx.data.columns.dates``). The conversion is fitted to the training rows and stored with the
    trained model.

    Args:
        path: of the file.
        target: name or number of the target's column (from 0; negative from the end), or a list of
            several; None: the last column. Texts are classes.
        inputs: name or number of an input column, or an ordered list of them; None: all columns but
            the targets, ``id``, ``noise`` and ``weights``.
        header: whether the first line names the columns; None: found from the line.
        split, test_fraction, root, split_seed: as for every source; ``path`` is relative to
            ``root`` if that is given.
        test_path: a file of rows to test on, with the same columns; None: a fold of the rows.
        missing: treatment of missing values: ``refuse``, ``drop`` (drop the row) or ``mean`` (the
            training mean, with an indicator input); ``auto``: ``mean`` for columns that lack
            values, with a note; see ``Coding``. With several targets some may be missing unless it
            is ``drop``; rows without any target are left out.
        categories: columns of categories; ``auto``: those whose cells are texts; ``kernel``: the
            same columns, compared by a separate kernel (``gpx.runs.categorical_kernel``).
        dates: columns of dates; ``auto``: those where most cells look like ISO dates, or that one
            other format alone fits (``gpx.data.columns.dates.format_of``).
        date_format: of other dates, as for ``datetime.strptime``.
        unseen: treatment of categories without training rows: ``apart`` or ``refuse``; see
            ``Coding``.
        max_categories: most categories that a column may have in training rows.
        id: name or number of a column that names the rows; it is not an input, and is copied to
            predictions.
        noise: column of known noise variances of the target, in its squared unit, added to the
            learned noise variance; with several targets a list of one column for each, in their
            order, or one for all.
        weights: column of the number of observations that each row stands for: the learned noise
            variance is divided by it.
        target_transform: transform through which the target is modelled: ``log``, ``boxcox``,
            ``quantile`` or None; see ``gpx.data.target_transform.TargetTransform``.
        unscaled: names or numbers of inputs that are not standardised, such as numbers of tasks
            that a kernel counts with.
        unusable: columns without a value in training rows, and of too many categories:
            ``leave_out`` (with a note), ``refuse``, or ``auto``: left out unless ``inputs`` names
            them or columns have no names.

    Raises:
        ConfigError: invalid or contradictory options.
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
        missing: Missing = "auto",
        categories: Choice | Sequence[Choice] = AUTO,
        dates: Choice | Sequence[Choice] = AUTO,
        date_format: str | None = None,
        unseen: Unseen = "apart",
        max_categories: int = 100,
        id: Choice | None = None,
        noise: Choice | Sequence[Choice] | None = None,
        weights: Choice | None = None,
        target_transform: str | None = None,
        unscaled: Choice | Sequence[Choice] | None = None,
        unusable: Unusable = "auto",
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        self.path = path
        self.targets = [-1] if target is None else as_list(target)
        self.inputs = None if inputs is None else as_list(inputs)
        self.header = header
        self.test_path = test_path
        if test_path is not None and split != 0:
            raise ConfigError(f"split={split}: with test_path= there is only one split, split=0")
        self.categories = None if categories in (AUTO, KERNEL) else as_list(categories)
        self.dates = None if dates == AUTO else as_list(dates)
        self.id, self.weights = id, weights
        self.noise = [] if noise is None else as_list(noise)
        self.target_transform = target_transform
        self.unscaled = [] if unscaled is None else as_list(unscaled)
        self.date_format = date_format
        check_one_of(get_args(Unusable), unusable=unusable)
        self.unusable = unusable
        self.policies = Coding((), missing, unseen, max_categories=max_categories)

    @abstractmethod
    def layout(self, path: Path) -> Layout:
        """Names of the columns of a file; raises DataError."""

    @abstractmethod
    def frame(self, layout: Layout, columns: Sequence[int], texts: bool = False) -> Frame:
        """Some of the columns; ``texts``: as text even if they hold numbers."""

    def table(self) -> Table:
        """All rows.

        Raises:
            DataError: malformed content, with file, line and column.
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
        for name, column in (("id", self.id), ("weights", self.weights)):
            if column is not None:
                roles[name] = [find_column(layout, column)]
        if self.noise:
            roles["noise"] = [find_column(layout, column) for column in self.noise]
        if self.inputs is None:
            taken = {i for columns in roles.values() for i in columns}
            roles["inputs"] = [i for i in range(layout.width) if i not in taken]
        else:
            roles["inputs"] = [find_column(layout, c) for c in self.inputs]
        order = ("inputs", "target", "id", "noise", "weights")
        uses = ((role, layout.column(i)) for role in order for i in roles.get(role, ()))
        require_different(uses, layout.path, "columns")
        names = tuple(layout.names[i] for i in roles["target"])
        if not layout.header_line:
            names = numbered_names(len(names), "y") if len(names) > 1 else ("y",)
        options = self._options(layout, roles, names)
        files, test = [layout.path], None
        if self.test_path is not None:
            other = self.layout(under(self.root, self.test_path, "test_path"))
            if other.path.resolve() == layout.path.resolve():
                warnings.warn(
                    f"test_path={self.test_path} is the same file as path=: metrics on training "
                    "rows say nothing about new rows; give other rows, or leave it out to test on "
                    "a fold of these",
                    stacklevel=users_line(),
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

    def _options(
        self, layout: Layout, roles: Mapping[str, list[int]], target_names: tuple[str, ...]
    ) -> ColumnOptions:
        """The options, with names of columns in place of numbers."""
        called = dict(zip(roles["target"], target_names, strict=True))

        def named(columns: list[Choice] | None) -> tuple[str, ...] | None:
            if columns is None:
                return None
            found = [find_column(layout, column) for column in columns]
            return tuple(called.get(i, layout.names[i]) for i in found)

        policies = replace(
            self.policies,
            identifier=layout.names[roles["id"][0]] if "id" in roles else None,
            noise=tuple(layout.names[i] for i in roles.get("noise", ())),
            leave_out=self._leaves_out(layout),
        )
        return ColumnOptions(
            policies,
            named(self.categories),
            named(self.dates),
            self.date_format,
            named(self.unscaled) or (),
        )

    def _leaves_out(self, layout: Layout) -> bool:
        """Whether columns that cannot be inputs are left out."""
        if self.unusable == "auto":
            return self.inputs is None and bool(layout.header_line)
        return self.unusable == "leave_out"

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
    """A delimited text file, possibly gzipped; options as for ``TableFile``.

    The delimiter (comma, semicolon, tab or white space) and a header line are recognised. The words
    true and false are read as 1 and 0.
    """

    def layout(self, path: Path) -> Layout:
        """Delimiter and names of the columns."""
        return sniff(path, self.header)

    def frame(self, layout: Layout, columns: Sequence[int], texts: bool = False) -> Frame:
        """Some columns; read line by line unless they are plain numbers."""
        return read_frame(layout, columns, texts)


def _same_columns(layout: Layout, other: Layout, columns: list[int]) -> list[int]:
    """Indices in another file of columns of the first: by name, or by number without names."""
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
