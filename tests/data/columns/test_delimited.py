"""Delimited text: its layout, the numbers, and the line and column of each fault."""

import gzip

import numpy as np
import pytest

from gpx.data.columns.delimited import existing_file, read_columns, sniff
from gpx.errors import DataError


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
        ("a,b\n1,2\n3,x\n", r"line 3, column 2 \('b'\): found text 'x'"),
        ("a,b\n\n1,2\n3,\n", r"line 4, column 2 \('b'\): found an empty cell"),
        ("a,b\n1,2\n3,inf\n", r"line 3, column 2 \('b'\): found inf"),
        ("a,b\n1,2\n3,1_000\n", r"line 3, column 2 \('b'\): found text '1_000'"),
        ("a,b\n1,2\n3,0x1\n", r"line 3, column 2 \('b'\): found text '0x1'"),
        ('a;b\n1;2\n3;"1,5"\n', "found text '1,5', expected a number; write decimals with a point"),
        ("a,b\n1,2\n3,4,5\n", r"line 3: found 3 columns, expected 2 .*separated by comma"),
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
        (b"", "is empty, expected rows of numbers"),
        (b"\n \n", "is empty, expected rows of numbers"),
        (b"a,b\n", r"has a header \(line 1\) but no rows"),
        (b"a,1\n2,3\n", "found text 'a' beside numbers"),
        (b"a,a\n1,2\n", "the name 'a' heads both column 1 and column 2"),
        (b"#\n1,2\n", "line 1 is blank but for signs"),
        ("a,b\n1,2\n".encode("utf-16"), r"is not text in UTF-8 \(byte 0\)"),
        (gzip.compress(b"a,b\n1,2\n3,4\n", mtime=0)[:-9], "damaged or truncated gzip file"),
    ],
)
def test_what_has_no_layout(tmp_path, content, said):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        read_columns(sniff(path), [0, 1])


def test_files_that_are_not_there(tmp_path):
    put(tmp_path, "1,2\n", "concrete.csv")
    with pytest.raises(
        DataError, match=r"concret\.csv does not exist; nearest there: concrete\.csv"
    ):
        existing_file(tmp_path / "concret.csv")
    with pytest.raises(DataError, match="nothing there has a similar name"):
        existing_file(tmp_path / "zzzzzzzz")
    with pytest.raises(DataError, match="nor does its folder"):
        existing_file(tmp_path / "no" / "rows.csv")
    with pytest.raises(DataError, match="is a folder, expected a file"):
        existing_file(tmp_path)
