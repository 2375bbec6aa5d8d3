"""The values of nested configs."""

from gpx.options.tree import changed, leaves

NODE = {"a": {"x": 1, "none": None, "empty": {}}, "parts": [{"x": 2}, [3, {"x": 4}]], 7: "seven"}


def test_leaves_have_their_dotted_names():
    plain = {"a.x": 1, "a.none": None, "7": "seven"}
    entries = {"parts.0.x": 2, "parts.1.0": 3, "parts.1.1.x": 4}
    assert dict(leaves(NODE)) == plain | entries
    assert dict(leaves(NODE, lists=False)) == plain | {"parts": NODE["parts"]}
    assert list(leaves(5, "seed")) == [("seed", 5)]


def test_a_changed_copy_differs_in_named_values_only():
    before = str(NODE)
    made = changed(NODE, lambda option, value: -value if option == "x" else value)
    assert made == {
        "a": {"x": -1, "none": None, "empty": {}},
        "parts": [{"x": -2}, [3, {"x": -4}]],
        7: "seven",
    }
    assert str(NODE) == before
