"""Coverage of operators and linear algebra by runs of the command line.

Trains, predicts and diagnoses small runs of every approximation and its main choices, and reports
the share of statements of gpx/operators and gpx/linalg that were executed, and which approximations
made each operator:

    pip install coverage
    python scripts/reached_by_runs.py                  # all runs, about five minutes
    python scripts/reached_by_runs.py --lines levinson # also lines not reached in such files
    python scripts/reached_by_runs.py --functions      # also functions that no run has entered
    python scripts/reached_by_runs.py --folders runs methods --functions

Statements of blocks that end by raising an error are counted separately, since no run should reach
them. Other statements that are not reached are for users of the package only (their docstring says
so), required by linear_operator, or dead.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import numpy as np
from small_runs import RUNS

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("operators", "linalg")

SMALL = "trainer.max_steps=4 trainer.tensorboard=false trainer.figures=false "
SMALL += "trainer.baselines=false"
START = "init.num_points=100 init.max_evaluations=4"
"""For all runs except those on grids, which have another init."""
CERTIFIED = ("exact", "sgpr", "cglb", "svgp")


def train_and_use(name: str, options: str, folder: Path) -> str:
    """Train, predict a table and, if the method has one, compute its certificate."""
    from gpx.commands.diagnose import main as diagnose
    from gpx.commands.predict import main as predict
    from gpx.errors import GPXError
    from gpx.options.composition import composed
    from gpx.runs import RunFolder, load, run

    target = RunFolder(folder / name.replace(" ", "_"))
    settings = SMALL if "grid" in name or "init=constants" in options else f"{SMALL} {START}"
    given = f"{settings} {options}".split()
    try:
        run(composed(given), target, lambda first, last: composed([*first, *given, *last]))
        predictor = load(target.path)
        inputs = np.zeros((100, len(predictor.input_names)))
        inputs[:, 0] = np.linspace(-1.0, 1.0, 100)
        table = target.path / "new.csv"
        np.savetxt(table, inputs, delimiter=",")
        predict([f"run={target.path}", f"input={table}", f"output={target.path / 'out.csv'}"])
        if name in CERTIFIED:
            diagnose([f"run={target.path}"])
            diagnose([f"run={target.path}", "products=false"])
    except GPXError as error:
        return f"refused: {error}"
    return "done"


@contextlib.contextmanager
def noted_operators(made: dict[str, set[str]], running: list[str]) -> Iterator[None]:
    """Record in ``made`` which runs, the last of ``running``, make each public operator."""
    import gpx.operators
    from gpx.operators.structured import Structured

    original = Structured.__init__

    def noting(self: Structured, *args: Any, **kwargs: Any) -> None:
        if type(self).__name__ in gpx.operators.__all__:
            made[type(self).__name__].add(running[-1])
        original(self, *args, **kwargs)

    Structured.__init__ = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        Structured.__init__ = original  # type: ignore[method-assign]


def refusals(path: Path) -> set[int]:
    """Line numbers of statements in blocks that end by raising an error."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list) and block and isinstance(block[-1], ast.Raise):
                found |= {s.lineno for s in block}
    return found


def never_entered(path: Path, missed: set[int]) -> list[str]:
    """Functions of a file that were never entered, with numbers of lines."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            body = [s.lineno for s in node.body if not isinstance(s, ast.Expr | ast.Pass)]
            if body and missed.issuperset(body):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                found.append(f"{node.name} ({lines} lines from {node.lineno})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", nargs="*", default=None, help="files whose missed lines to show")
    parser.add_argument("--functions", action="store_true", help="name functions never entered")
    parser.add_argument("--folders", nargs="*", default=FOLDERS, help="folders of gpx to measure")
    arguments = parser.parse_args()
    folders = [str(ROOT / "gpx" / f / "*") for f in arguments.folders]
    measured = coverage.Coverage(
        data_file=None,
        include=folders,
        concurrency="thread",
    )
    measured.start()
    made: dict[str, set[str]] = defaultdict(set)
    running = [""]
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        noted_operators(made, running),
    ):
        warnings.simplefilter("ignore")
        rows = Path(folder) / "rows.npy"
        x = np.random.default_rng(0).normal(size=(3000, 2))
        np.save(rows, np.column_stack([x, np.sin(x).sum(1)]))
        streamed = f"data=stream data.path={rows} approx.num_inducing=30"
        streams = {
            "svgp stream": f"approx=svgp {streamed}",
            "swsgp stream": f"approx=swsgp approx.num_neighbours=8 {streamed}",
        }
        every = {**RUNS, **streams}
        named = {o.split("approx=")[1].split()[0] for o in every.values()}
        left = {path.stem for path in (ROOT / "configs" / "approx").glob("*.yaml")} - named
        print(f"without a run: {', '.join(sorted(left)) or 'no approximation'}")
        for name, options in every.items():
            running.append(options.split("approx=")[1].split()[0])
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                outcome = train_and_use(name, options, Path(folder))
            print(f"{name}: {outcome}", flush=True)
    measured.stop()
    for part in arguments.folders:
        total = reached = refused = 0
        for path in sorted((ROOT / "gpx" / part).rglob("*.py")):
            _, statements, _, missed, text = measured.analysis2(str(path))
            hit = len(statements) - len(missed)
            total, reached = total + len(statements), reached + hit
            refused += len(refusals(path) & set(missed))
            print(f"{hit:5d} of {len(statements):5d}  {path.relative_to(ROOT)}")
            if arguments.lines is not None and any(word in str(path) for word in arguments.lines):
                print(f"    not reached: {text}")
            if arguments.functions:
                for function in never_entered(path, set(missed)):
                    print(f"    never entered: {function}")
        print(
            f"{part}: {reached} of {total} statements, {reached / total:.0%}; "
            f"{reached / (total - refused):.0%} without {refused} of refusals"
        )
    for operator, names in sorted(made.items()):
        print(f"{operator}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
