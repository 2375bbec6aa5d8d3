"""Delimited text: its layout, the numbers, and the line and column of each fault."""

import gzip

import numpy as np
import pytest

from gpx.data.columns.coding import Coding
from gpx.data.columns.delimited import read_cells, sniff
from gpx.data.columns.frame import read_frame
from gpx.data.folders import existing_file
from gpx.errors import DataError


def read_columns(layout, columns):
    """Columns that are all to be numbers."""
    frame = read_frame(layout, columns)
    return Coding.of_numbers(frame.names)(frame)


def put(folder, text, name="rows.csv"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("a,b\n1,2\n", ","),
        ("a;b\n1;2\n", ";"),
        ("a\tb\n1\t2\n", "\t"),
        ("a  b\n1   2\n", None),
        ("a;b,c\n1;2\n", ";"),  # a comma within a name
        ('"a,b";c\n1;2\n', ";"),
        ("1,2\n3,4\n", ","),
    ],
)
def test_what_separates_the_columns(tmp_path, text, delimiter):
    layout = sniff(put(tmp_path, text))
    assert layout.delimiter == delimiter
    assert layout.width == 2


def test_a_header_is_a_line_without_numbers_after_blank_ones(tmp_path):
    layout = sniff(put(tmp_path, "\n\n# height, ,cost\n1,2,3\n"))
    assert layout.header_line == 3
    assert layout.names == ("height", "column 2", "cost")
    assert layout.column(2) == "column 3 ('cost')"
    plain = sniff(put(tmp_path, "1,nan,3\n"))
    assert plain.header_line == 0
    assert plain.names == ("x1", "x2", "x3")
    assert plain.column(2) == "column 3"


def test_years_can_be_declared_a_header_and_words_none(tmp_path):
    path = put(tmp_path, "2001,2002\n1,2\n")
    assert read_columns(sniff(path), [0, 1]).tolist() == [[2001.0, 2002.0], [1.0, 2.0]]
    assert read_columns(sniff(path, header=True), [1, 0]).tolist() == [[2.0, 1.0]]
    words = sniff(put(tmp_path, "true,false\nfalse,TRUE\n"), header=False)
    assert read_columns(words, [0, 1]).tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_the_line_by_line_reader_reads_the_same_numbers(tmp_path, name):
    values = np.random.default_rng(0).normal(size=(50, 3)) * 10.0 ** np.arange(-150, 150, 100)
    lines = [",".join(map(repr, row)) for row in values.tolist()]
    quick = sniff(put(tmp_path, "a,b,c\n" + "\n".join(lines), name))
    assert np.array_equal(read_columns(quick, [0, 1, 2]), values)
    # a word in a row sends the whole file to the other reader
    lines[7] = "true,false,1"
    values[7] = [1.0, 0.0, 1.0]
    slow = sniff(put(tmp_path, "a,b,c\n" + "\n".join(lines), name))
    assert np.array_equal(read_columns(slow, [2, 0]), values[:, [2, 0]])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a,b\n1,2\n3,0x1\n", r"line 3, column 2 \('b'\): found text '0x1'"),
        ('a,b\n1,2\n"3,4\n5,6\n7,8\n', "line 3: a quote opens here and is not closed"),
        ('a,b\n1,"2\n3,4"\n5,6\n', "line 2: a quote opens here and is not closed"),
    ],
)
def test_a_fault_is_named_by_line_and_column(tmp_path, text, place):
    layout = sniff(put(tmp_path, text))
    with pytest.raises(DataError, match=place):
        read_columns(layout, [0, 1])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,1\n2,3\n", "found text 'a' beside numbers"),
        (b"#\n1,2\n", "line 1 has no names or numbers"),
        ("a,b\n1,2\n".encode("utf-16"), r"is not text in UTF-8 \(byte 0\)"),
        (gzip.compress(b"a,b\n1,2\n3,4\n", mtime=0)[:-9], "damaged or truncated gzip file"),
    ],
)
def test_what_has_no_layout(tmp_path, content, said):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        read_columns(sniff(path), [0, 1])


def test_a_file_of_whose_name_nothing_there_is_near(tmp_path):
    put(tmp_path, "1,2\n", "concrete.csv")
    with pytest.raises(DataError, match="nothing there has a similar name"):
        existing_file(tmp_path / "zzzzzzzz")


def test_lines_of_rows_with_quoted_cells(tmp_path):
    layout = sniff(put(tmp_path, 'a,b\n1,"two\nlines"\n\n3,"x"'))
    assert read_cells(layout, [0]) == ([2, 5], [["1", "3"]])
    with pytest.raises(DataError, match="line 5: a quote opens here"):
        read_cells(sniff(put(tmp_path, 'a,b\n1,"two\nlines"\n\n3,"x')), [0])
