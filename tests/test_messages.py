"""Below ``gpx.options`` a message speaks of arguments and classes; options are named above.

``gpx.options.names`` writes ``rank=80`` as ``approx.rank=80`` and ``kernel=RBF()`` as
``kernel=rbf`` for whoever trains from a config. A message that does so itself is wrong for
everybody who does not.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpx.options.composition import known_names
from gpx.options.config import CONFIGS
from gpx.options.names import VALUED

GPX = Path(__file__).parents[1] / "gpx"
ABOVE = (
    *(GPX / name for name in ("options", "training", "runs", "commands")),
    *(GPX / f"{name}.py" for name in ("doctor", "sklearn")),
)
"""What knows options: the layer that reads them, and what is called with options."""


def option_pattern() -> re.Pattern[str]:
    """Options as they are written on the command line: dotted names, and choices of groups."""
    dotted = "|".join(re.escape(name) for name in known_names() if "." in name)
    choices = [
        f"{path.parent.name}={path.stem}"
        for path in CONFIGS.glob("*/*.yaml")
        if path.parent.name not in VALUED
    ]
    groups = r"(?:approx|trainer|optimizer|objective)\.(?!\w+\()(?=[\w{])|approx="
    return re.compile(rf"(?<![\w.]){groups}|(?<![\w.])(?:{dotted}|{'|'.join(choices)})\b")


OPTION = option_pattern()


def strings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string that is no docstring; ``{}`` where a value stands."""
    tree = ast.parse(source)
    passed = {
        id(part)
        for node in ast.walk(tree)
        for part in (
            [node.value]
            if isinstance(node, ast.Expr)
            else node.values
            if isinstance(node, ast.JoinedStr)
            else []
        )
    }
    for node in ast.walk(tree):
        if id(node) in passed:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(map(str, parts))


def test_no_message_below_the_options_names_one():
    files = [path for path in sorted(GPX.rglob("*.py")) if not {*ABOVE} & {path, *path.parents}]
    assert len(files) > 200
    named = [
        f"{path.relative_to(GPX)}:{line}: {text}"
        for path in files
        for line, text in strings(path.read_text())
        if OPTION.search(text)
    ]
    assert not named, "say it as an argument, see gpx/options/names.py:\n" + "\n".join(named)


@pytest.mark.parametrize(
    "message",
    [
        'f"approx.{name}={value}"',
        '"raise trainer.max_steps"',
        '"too large; " "lower data.test_fraction"',
        '"start at another kernel.lengthscale"',
        '"use kernel=rbf"',
        '"set selector=greedy"',
        '"choose another approx="',
    ],
)
def test_an_option_in_a_message_is_found(message):
    (found,) = strings(f"raise ValueError({message})")
    assert OPTION.search(found[1])


@pytest.mark.parametrize(
    "message",
    [
        "rank=80 is above the 54 points",
        "use kernel=RBF() or inference=type2",
        "gpx.kernels.RBF",
        "IterativeOptions.tolerance is too small",
    ],
)
def test_arguments_and_classes_are_no_options(message):
    assert not OPTION.search(message)
