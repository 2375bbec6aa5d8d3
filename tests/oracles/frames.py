"""As much of a data frame as gpx looks at: names of columns, and columns by name."""

from __future__ import annotations

import numpy as np


class Column:
    """One column, or one row, of a frame."""

    ndim = 1

    def __init__(self, values, index=None, name=None):
        self.values = np.asarray(values, dtype=float)
        self.index = range(len(self.values)) if index is None else list(index)
        self.name = name

    def __array__(self, dtype=None, copy=None):
        return self.values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, names):
        return Column([self.values[self.index.index(n)] for n in names], names, self.name)


class Frame:
    """Columns by name; ``numbers`` adds columns that are merely numbered."""

    ndim = 2

    def __init__(self, numbers=(), **columns):
        length = len(next(iter(columns.values()), [0.0]))
        self.data = {**columns, **{number: [0.0] * length for number in numbers}}
        self.columns = list(self.data)

    def __array__(self, dtype=None, copy=None):
        return np.stack([np.asarray(self.data[name], dtype=float) for name in self.columns], axis=1)

    def __len__(self):
        return len(self.__array__())

    def __getitem__(self, names):
        if isinstance(names, list):
            made = Frame()
            made.data, made.columns = {name: self.data[name] for name in names}, names
            return made
        return Column(self.data[names], name=names)
