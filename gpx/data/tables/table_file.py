"""Tables in files, one row per observation, columns by name or number."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from gpx.data.columns.delimited import Layout
from gpx.data.columns.frame import Frame
from gpx.data.folders import sha256
from gpx.data.source import DataSource
from gpx.data.table import Table, numbered_names
from gpx.data.tables.column_options import ColumnOptions, Rows, table_of
from gpx.errors import ConfigError, DataError

Column = str | int
AUTO = "auto"


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
            ``mean`` (the training mean, and an input that says so); see ``Coding``.
        categories: columns of categories; ``auto``: those whose cells are texts.
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
        target: Column | Sequence[Column] | None = None,
        inputs: Column | Sequence[Column] | None = None,
        header: bool | None = None,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
        test_path: str | None = None,
        missing: str = "refuse",
        categories: Column | Sequence[Column] = AUTO,
        dates: Column | Sequence[Column] = AUTO,
        date_format: str | None = None,
        unseen: str = "apart",
        max_categories: int = 100,
        id: Column | None = None,
        noise: Column | None = None,
        weights: Column | None = None,
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
        self.categories = None if categories == AUTO else as_list(categories)
        self.dates = None if dates == AUTO else as_list(dates)
        self.id, self.noise, self.weights = id, noise, weights
        self.target_transform = target_transform
        self.options = ColumnOptions(
            missing=missing, unseen=unseen, date_format=date_format, max_categories=max_categories
        )

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
        targets = [find_column(layout, c) for c in self.targets]
        others = {
            name: find_column(layout, column)
            for name, column in (("id", self.id), ("noise", self.noise), ("weights", self.weights))
            if column is not None
        }
        if self.inputs is None:
            taken = (*targets, *others.values())
            inputs = [i for i in range(layout.width) if i not in taken]
        else:
            inputs = [find_column(layout, c) for c in self.inputs]
        asked = [*inputs, *targets]
        for i in asked:
            if asked.count(i) > 1:
                raise DataError(
                    f"{layout.path}: {layout.column(i)} is asked for twice among "
                    "inputs= and target=, expected different columns"
                )
        for name, place in others.items():
            if place in asked or list(others.values()).count(place) > 1:
                raise DataError(
                    f"{layout.path}: {layout.column(place)} is {name}= and something else too, "
                    "expected different columns"
                )
        options = self._options(layout, others)
        names = tuple(layout.names[i] for i in targets)
        if not layout.header_line:
            names = numbered_names(len(targets), "y") if len(targets) > 1 else ("y",)
        files = [layout.path]
        rows = [self._rows(layout, inputs, targets, others, options, names)]
        if self.test_path is not None:
            other = self.layout(under(self.root, self.test_path))
            where = self._same_columns(layout, other, [*inputs, *targets, *others.values()])
            split = len(inputs), len(inputs) + len(targets)
            last = dict(zip(others, where[split[1] :], strict=True))
            own = where[: split[0]], where[split[0] : split[1]]
            rows.append(self._rows(other, *own, last, options, names))
            files.append(other.path)
        return table_of(
            rows[0],
            rows[1] if len(rows) > 1 else None,
            options,
            name=layout.path.name.removesuffix(".gz").rsplit(".", 1)[0],
            origin=str(layout.path),
            checksums={file.name: sha256(file) for file in files},
            target_transform=self.target_transform,
        )

    def _options(self, layout: Layout, others: Mapping[str, int]) -> ColumnOptions:
        """The policies with columns by the names they have in the file."""

        def named(columns: list[Column] | None) -> tuple[str, ...] | None:
            if columns is None:
                return None
            return tuple(layout.names[find_column(layout, column)] for column in columns)

        return ColumnOptions(
            self.options.missing,
            self.options.unseen,
            named(self.categories),
            named(self.dates),
            self.options.date_format,
            self.options.max_categories,
            layout.names[others["id"]] if "id" in others else None,
            layout.names[others["noise"]] if "noise" in others else None,
        )

    def _rows(
        self,
        layout: Layout,
        inputs: Sequence[int],
        targets: Sequence[int],
        others: Mapping[str, int],
        options: ColumnOptions,
        target_names: tuple[str, ...],
    ) -> Rows:
        known = [others[name] for name in ("noise", "weights") if name in others]
        texts = bool(options.categories or options.dates)
        frame = self.frame(layout, [*inputs, *targets, *known], texts)
        d, p = len(inputs), len(targets)
        further = {
            name: frame.select([d + p + place])
            for place, name in enumerate(n for n in ("noise", "weights") if n in others)
        }
        return Rows(
            frame.select(range(d)),
            frame.select(range(d, d + p)).renamed(target_names),
            **further,
        )

    def _same_columns(self, layout: Layout, other: Layout, columns: list[int]) -> list[int]:
        """Where another file has the columns of the first: by name, or by number without names."""
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


def find_column(layout: Layout, column: Column) -> int:
    """Index of a column given by name, or by number counting from 0 (negative from the end).

    Raises:
        DataError: no such column; names the nearest.
    """
    if layout.header_line and str(column) in layout.names:
        return layout.names.index(str(column))
    if isinstance(column, int) or str(column).lstrip("-").isdigit():
        index = int(column)
        if -layout.width <= index < layout.width:
            return index % layout.width
        raise DataError(
            f"{layout.path} has {layout.width} columns, so there is no column number {index}; "
            f"expected {-layout.width} to {layout.width - 1} (counting from 0) or a name"
        )
    if not layout.header_line:
        raise DataError(
            f"{layout.path} has no header line, so no column is called {column!r}; "
            f"give its number, 0 to {layout.width - 1}"
        )
    near = get_close_matches(str(column), layout.names, n=3, cutoff=0.5)
    listed = ", ".join(layout.names[:12]) + (", ..." if layout.width > 12 else "")
    hint = f"nearest: {', '.join(near)}" if near else f"columns: {listed}"
    raise DataError(f"{layout.path} has no column {column!r}; {hint}")


def as_list(columns: Column | Sequence[Column]) -> list[Column]:
    """One column or several as a list: inputs=age is not the letters of it."""
    return [columns] if isinstance(columns, (str, int)) else list(columns)


def under(root: str | None, path: str) -> Path:
    """A path that starts from ``root`` where that is given and the path is relative."""
    given = Path(path).expanduser()
    return given if root is None or given.is_absolute() else Path(root).expanduser() / given
