"""How much of the operators and the linear algebra the command line reaches.

Trains, predicts and diagnoses small runs of every approximation and its main choices, and reports
the share of statements of gpx/operators and gpx/linalg that were executed:

    pip install coverage
    python scripts/reached_by_runs.py                  # all of them, about two minutes
    python scripts/reached_by_runs.py --lines levinson # and which lines of files like this were not

What no run reaches is either for users of the package alone (said in its docstring) or dead.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import warnings
from pathlib import Path

import coverage
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("operators", "linalg")

ARM = "data=robot_arm data.num_points=600"
LEARNED = "approx=reweighted inference=type2 approx.priors=null"
GRID = "approx=grid data=grid_stress data.field=rastrigin data.shape=[12,12] trainer.max_steps=3"
ITERATIVE = "approx=exact approx.solver=iterative"
RUNS = {
    "exact": f"{ARM} approx=exact",
    "exact iterative": f"{ARM} {ITERATIVE} approx.iterative.rank=20",
    "exact float32 products": f"{ARM} {ITERATIVE} approx.iterative.product_dtype=float32",
    "exact barely biased": f"{ARM} approx=exact approx.solver=barely_biased",
    "exact grief preconditioner": (
        f"{ARM} {ITERATIVE} approx.iterative.preconditioner=grief approx.iterative.rank=20"
    ),
    "sgpr": f"{ARM} approx=sgpr approx.num_inducing=20 trainer.certify=true",
    "svgp many inducing points": f"{ARM} approx=svgp approx.num_inducing=300",
    "sgpr sampled points": f"{ARM} approx=sgpr approx.num_inducing=20 selector=rpcholesky",
    "sgpr auto": "data=toy1d approx=sgpr inducing=auto trainer.max_steps=4",
    "sgpr eigenfunctions": "data=toy1d approx=sgpr inducing=eigenfunctions",
    "cglb": f"{ARM} approx=cglb approx.num_inducing=20",
    "cglb restarts": (
        f"{ARM} approx=cglb approx.num_inducing=5 objective.solver.restart_every=2 "
        "approx.solver.restart_every=2"
    ),
    "cglb stored matrix": (
        f"{ARM} approx=cglb approx.num_inducing=20 objective.solver.product_dtype=float64 "
        "objective.log_determinant=preconditioned_trace"
    ),
    "cglb lanczos": f"{ARM} approx=cglb approx.num_inducing=20 approx.variance=lanczos",
    "svgp": f"{ARM} approx=svgp approx.num_inducing=20",
    "svgp classes": f"{ARM} approx=svgp approx.num_inducing=20 likelihood=student_t",
    "qsgp": f"{ARM} approx=qsgp approx.num_basis=400 approx.block_columns=100",
    "qsgp stochastic": (
        f"{ARM} approx=qsgp optimizer=qsgp approx.num_basis=400 approx.warm_start_size=100"
    ),
    "qsgp sites": f"{ARM} approx=qsgp likelihood=laplace approx.num_basis=400",
    "qsgp_inducing": f"{ARM} approx=qsgp_inducing approx.rank=50",
    "qsrvm": f"{ARM} approx=qsrvm approx.sweeps=10",
    "grid": f"{GRID} data.gap_share=0.0",
    "grid fill": f"{GRID} data.gap_share=0.3 grid.gaps=fill",
    "grid fill with eigenpairs, sampled variances": (
        f"{GRID} data.gap_share=0.3 grid.gaps=fill approx.solver.precondition_rank=20 "
        "approx.variance=sampled"
    ),
    "grid ignore": f"{GRID} data.gap_share=0.3 grid.gaps=ignore",
    "grid penalize": f"{GRID} data.gap_share=0.3 grid.gaps=penalize",
    "grid ignore within a small memory": (
        f"{GRID} data.gap_share=0.3 grid.gaps=ignore approx.solver.precondition_rank=200 "
        "data.shape=[36,36] trainer.memory_budget=1MiB"
    ),
    "grid gcv": f"{GRID} data.gap_share=0.3 objective=gcv kernel.outputscale=null",
    "grid slq": f"{GRID} data.gap_share=0.3 objective.logdet=slq_fill",
    "grid nystrom": f"{GRID} data.gap_share=0.3 objective.logdet=nystrom",
    "grid circle": f"{GRID} data.gap_share=0.2 approx.fft_points=10",
    "ski": "data=toy1d approx=ski",
    "ski chebyshev": "data=toy1d approx=ski objective.logdet=chebyshev",
    "ski circulant": "data=toy1d approx=ski objective.logdet=circulant objective.circulant=chan",
    "swsgp": f"{ARM} approx=swsgp approx.num_inducing=60 approx.num_neighbours=8",
    "vnngp": f"{ARM} approx=vnngp approx.num_neighbours=8",
    "vecchia": f"{ARM} approx=vecchia",
    "deep_rf": f"{ARM} approx=deep_rf approx.num_features=40 approx.predict_samples=3",
    "dkl": f"{ARM} approx=dkl approx.pretrain_steps=20 approx.num_inducing=40",
    "svdkl": f"{ARM} approx=svdkl approx.pretrain_steps=20",
    "deep_svgp": f"{ARM} approx=deep_svgp approx.num_inducing=40",
    "gpdnn": "data=digits data.train_size=200 approx=gpdnn approx.pretrain_steps=20",
    "conv_gp": "data=digits data.train_size=200 approx=conv_gp",
    "glyphs": "data=glyphs data.num_images=200 approx=cnn",
    "fields": "data=fields data.num_images=200 data.side=8 approx=cnn",
    "resnet": "data=digits data.train_size=200 approx=cnn approx.backbone=resnet",
    "alexnet": "data=digits data.train_size=100 approx=cnn approx.backbone=alexnet",
    "cnn": "data=digits data.train_size=200 approx=cnn",
    "cnn_rf": "data=digits data.train_size=200 approx=cnn_rf",
    "cnn_sorf": "data=digits data.train_size=200 approx=cnn_sorf",
    "deep_rf structured": f"{ARM} approx=deep_rf approx.directions=structured",
    "ski linear": "data=toy1d approx=ski approx.interpolation=linear",
    "ski two inputs": (
        "approx=ski data=grid_stress data.field=rastrigin data.shape=[20,20] "
        "data.gap_share=0.2 approx.grid_size=24"
    ),
    "ssgp": f"{ARM} approx=ssgp approx.num_basis=20 approx.draws=2",
    "direct": f"{ARM} approx=direct approx.num_basis=40",
    "direct mixture": f"{ARM} approx=direct_mixture approx.num_basis=40 trainer.max_steps=20",
    "direct mixture sampled": (
        f"{ARM} approx=direct_mixture objective=direct_sampled_elbo optimizer=adam "
        "approx.num_basis=40 trainer.max_steps=20"
    ),
    "direct network": f"{ARM} approx=direct_network trainer.max_steps=20",
    "direct logistic": (
        "data=banana approx=direct_logistic approx.num_basis=40 "
        "approx.weights.widths=[0.3,1.0] trainer.max_steps=20"
    ),
    "direct ascent": f"{ARM} approx=direct optimizer=coordinate_ascent approx.num_basis=40",
    "vssgp": f"{ARM} approx=vssgp approx.num_basis=20 approx.draws=2",
    "exact residual per row": (
        f"{ARM} {ITERATIVE} approx.iterative.variance=exact objective=iterative_mll "
        "objective.criterion=residual_per_row objective.kind_of_probes=gaussian"
    ),
    "laplace": "data=banana approx=laplace",
    "ep": "data=banana approx=ep",
    "elliptical_slice": (
        "data=banana approx=elliptical_slice optimizer.chains=2 optimizer.burn_in=5 "
        "optimizer.iterations=8 trainer.max_steps=30"
    ),
    "qsgp eigenfunctions": f"{ARM} approx=qsgp basis=grief approx.num_basis=100",
    "exact arc-cosine": f"{ARM} approx=exact kernel=arc_cosine",
    "exact matern_nu": f"{ARM} approx=exact kernel=matern_nu",
    "qsgp fastfood": f"{ARM} approx=qsgp basis=fastfood approx.num_basis=400",
    "qsgp arc-cosine": f"{ARM} approx=qsgp kernel=arc_cosine basis=arc_cosine approx.num_basis=400",
    "committee": f"{ARM} approx=committee approx.num_experts=4 approx.rule=grbcm",
    "local experts": f"{ARM} approx=local_experts approx.num_experts=4",
    "transductive": f"{ARM} approx=transductive approx.num_experts=4",
    "mixture of experts": f"{ARM} approx=mixture_of_experts approx.num_experts=3",
    "svgp eigenfunctions": "data=toy1d approx=svgp inducing=eigenfunctions",
    "grief": f"{ARM} approx=grief approx.num_eigenfunctions=40",
    "reweighted": (
        f"{ARM} approx=reweighted approx.num_basis=40 optimizer.burn_in=10 "
        "optimizer.iterations=20 optimizer.thin=5 trainer.max_steps=30"
    ),
    "reweighted type2": f"{ARM} approx=reweighted inference=type2 approx.num_basis=40",
    "reweighted laplacian": f"data=toy1d {LEARNED} basis=laplacian approx.num_basis=40",
    "reweighted ski": f"data=toy1d {LEARNED} basis=ski approx.num_basis=40",
    "reweighted orthogonal": (
        f"{ARM} approx=reweighted inference=type2 approx.structure=orthogonal approx.num_basis=40"
    ),
    "reweighted householder": (
        f"{ARM} approx=reweighted approx.structure=householder approx.num_basis=20 "
        "optimizer.burn_in=10 optimizer.iterations=20 optimizer.thin=5 trainer.max_steps=30"
    ),
    "reweighted relevance": (
        f"{ARM} approx=reweighted inference=relevance_vectors approx.priors=null "
        "approx.num_basis=40"
    ),
}
"""Options of every run, besides those of all."""
SMALL = "trainer.max_steps=4 trainer.tensorboard=false trainer.figures=false "
SMALL += "trainer.baselines=false"
START = "init.num_points=100 init.max_evaluations=4"
"""Not of grids, which start elsewhere."""
CERTIFIED = ("exact", "sgpr", "cglb", "svgp")


def train_and_use(name: str, options: str, folder: Path) -> str:
    """One run, predictions of a table and, where it can have one, its certificate."""
    from gpx.commands.diagnose import main as diagnose
    from gpx.commands.predict import main as predict
    from gpx.errors import GPXError
    from gpx.options.composition import composed
    from gpx.runs import RunFolder, load, run

    target = RunFolder(folder / name.replace(" ", "_"))
    settings = SMALL if "grid" in name else f"{SMALL} {START}"
    try:
        run(composed(f"{settings} {options}".split()), target)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", nargs="*", default=None, help="files whose missed lines to show")
    arguments = parser.parse_args()
    measured = coverage.Coverage(
        data_file=None, include=[str(ROOT / "gpx" / f / "*") for f in FOLDERS], concurrency="thread"
    )
    measured.start()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = Path(folder) / "rows.npy"
        x = np.random.default_rng(0).normal(size=(3000, 2))
        np.save(rows, np.column_stack([x, np.sin(x).sum(1)]))
        streamed = f"data=stream data.path={rows} approx.num_inducing=30"
        streams = {
            "svgp stream": f"approx=svgp {streamed}",
            "swsgp stream": f"approx=swsgp approx.num_neighbours=8 {streamed}",
        }
        for name, options in {**RUNS, **streams}.items():
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                outcome = train_and_use(name, options, Path(folder))
            print(f"{name}: {outcome}", flush=True)
    measured.stop()
    for part in FOLDERS:
        total = reached = 0
        for path in sorted((ROOT / "gpx" / part).rglob("*.py")):
            _, statements, _, missed, text = measured.analysis2(str(path))
            hit = len(statements) - len(missed)
            total, reached = total + len(statements), reached + hit
            print(f"{hit:5d} of {len(statements):5d}  {path.relative_to(ROOT)}")
            if arguments.lines is not None and any(word in str(path) for word in arguments.lines):
                print(f"    not reached: {text}")
        print(f"{part}: {reached} of {total} statements, {reached / total:.0%}")


if __name__ == "__main__":
    main()
