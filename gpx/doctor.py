"""Check this machine, in a few seconds.

Shows versions, memory and devices; compares the numerics of gpx with dense NumPy in float64, on
every device in float32 and float64; compiles a formula with the optional KeOps backend; and names
what is used in place of missing parts. The exit status is 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpx.backends import keops_installed
from gpx.backends.trial import Fault
from gpx.backends.triton import triton_refusal
from gpx.bases import RandomFourier
from gpx.bases.fourier.native import fourier_pass
from gpx.cache_folder import cache_folder
from gpx.data.folders import ROOT_VARIABLE
from gpx.errors import GPXError
from gpx.inference.exact_density import log_marginal_likelihood
from gpx.kernels import RBF
from gpx.linalg import RelativeResidual, available_memory, conjugate_gradients
from gpx.operators import KernelMatrix, Toeplitz
from gpx.runs.environment import environment_record

NUM_POINTS = 200
NOISE = 0.1
LENGTHSCALE = 0.7
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Largest accepted relative error of the self-tests."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        mark: "ok", "note" or "FAIL".
        text: what was checked and the result.
    """

    mark: str
    text: str

    @property
    def passed(self) -> bool:
        """Whether it is not a failure; notes pass."""
        return self.mark != "FAIL"

    def __str__(self) -> str:
        return f"{self.mark:>4}  {self.text}"


def note(text: str) -> Finding:
    """A line of information."""
    return Finding("note", text)


def check(text: str, passed: bool) -> Finding:
    """The result of a check."""
    return Finding("ok" if passed else "FAIL", text)


# -- the machine ----------------------------------------------------------------------------------


def devices() -> list[torch.device]:
    """The CPU and every CUDA device."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cpu"), *(torch.device("cuda", i) for i in range(count))]


def machine() -> Iterator[Finding]:
    """Versions, threads, memory, devices, data folders."""
    record = environment_record(torch.device("cpu"), 0, {})
    found = ", ".join(f"{k} {v}" for k, v in record["versions"].items() if v is not None)
    yield check(f"{found}; {record['platform']}", True)
    yield note(f"{torch.get_num_threads()} threads per operation (set by trainer.num_threads)")
    for device in devices():
        free = available_memory(device)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor"
        memory = "unknown memory" if free is None else f"{free / 2**30:.1f} GiB free"
        yield note(f"{device}: {name}, {memory}")
    if len(devices()) == 1:
        why = (
            f"torch {torch.__version__} is built without CUDA"
            if torch.version.cuda is None
            else f"torch is built for CUDA {torch.version.cuda} and finds no device or driver"
        )
        yield note(f"no CUDA device ({why}): trainer.device=auto uses the CPU")
    root = os.environ.get(ROOT_VARIABLE)
    where = f"${ROOT_VARIABLE} ({root})" if root else f"${ROOT_VARIABLE} (not set)"
    missing = ", which is not a folder" if root and not os.path.isdir(root) else ""
    try:
        cache = str(cache_folder())
    except FileNotFoundError as error:
        cache = f"but there is no cache folder ({error})"
    yield note(f"data sets are looked for in data.root, {where}{missing}, {cache}")


# -- numerics against dense NumPy in float64 ------------------------------------------------------


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs (n, 2), targets (n,) and K + sigma^2 I (n, n)."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((NUM_POINTS, 2))
    y = np.sin(3.0 * x[:, 0]) + 0.3 * rng.standard_normal(NUM_POINTS)
    squared = ((x[:, None] - x[None]) ** 2).sum(-1)
    return x, y, np.exp(-0.5 * squared / LENGTHSCALE**2) + NOISE * np.eye(NUM_POINTS)


def smooth_kernel() -> RBF:
    """The kernel of ``problem``, with parameters in float64 (the constructor rounds them)."""
    kernel = RBF().double()
    kernel.lengthscale = torch.tensor(LENGTHSCALE, dtype=torch.float64)
    kernel.outputscale = torch.tensor(1.0, dtype=torch.float64)
    return kernel


def relative(found: Tensor, right: np.ndarray | float) -> float:
    """Largest difference, relative to the largest correct value."""
    value = found.detach().double().cpu().numpy()
    return float(np.abs(value - right).max() / np.abs(right).max())


def self_tests(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Relative errors of a representative of every numerical path, by name."""
    x, y, matrix = problem()

    def here(values: np.ndarray | float) -> Tensor:
        return torch.as_tensor(values, device=device, dtype=dtype)

    inputs, targets = here(x), here(y)
    kernel = smooth_kernel().to(device, dtype)
    weights = np.linalg.solve(matrix, y)
    covariance = matrix - NOISE * np.eye(NUM_POINTS)
    operator = KernelMatrix.of(kernel, inputs, backend="chunked")

    noise = here(NOISE)
    terms, gradient, _ = log_marginal_likelihood(kernel, inputs, targets, noise, gradient=True)
    assert gradient is not None
    inverse = np.linalg.inv(matrix)
    _, logdet = np.linalg.slogdet(matrix)
    right = -0.5 * (y @ weights + logdet + NUM_POINTS * np.log(2.0 * np.pi))

    solved = conjugate_gradients(
        lambda v: operator @ v + NOISE * v,
        targets,
        stop=RelativeResidual(1e-12 if dtype == torch.float64 else 1e-6),
        max_iterations=10 * NUM_POINTS,
        on_failure="return",
    )
    column = np.exp(-0.5 * (np.arange(NUM_POINTS) / 20.0) ** 2)
    dense = column[np.abs(np.subtract.outer(np.arange(NUM_POINTS), np.arange(NUM_POINTS)))]
    basis = RandomFourier(smooth_kernel(), 2000, seed=0)
    features = RandomFourier(kernel, 2000, seed=0)(inputs)
    with torch.no_grad():
        host = basis(torch.as_tensor(x)).numpy()
    return {
        "kernel products": relative(operator @ targets, covariance @ y),
        "evidence by Cholesky": relative(terms.fit + terms.complexity + terms.constant, right),
        "gradient of the evidence": relative(
            gradient.noise, 0.5 * (weights @ weights - np.trace(inverse))
        ),
        "conjugate gradients": relative(solved.solution, weights),
        "Toeplitz products by FFT": relative(Toeplitz(here(column)) @ targets, dense @ y),
        "random Fourier features": relative(features, host),
    }


def numerics() -> Iterator[Finding]:
    """The self-tests, on every device in float32 and float64."""
    for device in devices():
        for dtype, tolerance in TOLERANCES.items():
            where = f"{device}, {str(dtype).removeprefix('torch.')}"
            try:
                errors = self_tests(device, dtype)
            except (GPXError, RuntimeError) as error:
                yield check(f"{where}: {error}", False)
                continue
            worst = max(errors, key=lambda k: errors[k])
            bad = [f"{k} ({e:.1e})" for k, e in errors.items() if not e <= tolerance]
            if bad:
                errors_found = ", ".join(bad)
                yield check(f"{where}: relative error above {tolerance:.0e}: {errors_found}", False)
            else:
                yield check(
                    f"{where}: {len(errors)} self-tests against dense NumPy, largest relative "
                    f"error {errors[worst]:.1e} ({worst}; accepted up to {tolerance:.0e})",
                    True,
                )


# -- extras ---------------------------------------------------------------------------------------


def triton_finding() -> Finding:
    """Whether the Triton kernels compile and agree with torch; or why they are not used."""
    if not torch.cuda.is_available():
        return note("the Triton kernels are not used, as they need a CUDA device")
    x = torch.zeros(2, 8, device="cuda")
    refusal = triton_refusal(KernelMatrix.of(smooth_kernel().to(x), x).entries)
    if refusal is None:
        return check("Triton: a kernel product compiles and agrees with torch", True)
    if isinstance(refusal, Fault):
        return check(f"{refusal}; other backends are used", False)
    return note(f"{refusal}: kernel products and random features are slower without it")


def extras(compile_keops: bool) -> Iterator[Finding]:
    """Optional parts: notes on missing ones, and checks of installed ones."""
    if fourier_pass(torch.zeros(1)) is None:
        yield note(
            "no C compiler (CC, or cc): random features run as torch operations, which is slower"
        )
    else:
        yield check("C compiler: random features are compiled and agree with torch", True)
    yield triton_finding()
    instead = "kernel products use tiles in torch instead (backend=chunked)"
    if not keops_installed():
        yield note(f"KeOps is not installed (pip install pykeops): {instead}")
    elif not compile_keops:
        yield note("KeOps is installed (check it with gpx doctor --keops)")
    else:
        yield from (keops_finding(device, instead) for device in devices())


def keops_finding(device: torch.device, instead: str) -> Finding:
    """Whether KeOps compiles a formula for a device, and its product is right."""
    x, y, matrix = problem()
    started = time.perf_counter()
    try:
        inputs = torch.as_tensor(x, device=device)
        operator = KernelMatrix.of(smooth_kernel().to(device), inputs, backend="keops")
        error = relative(operator @ torch.as_tensor(y, device=device), matrix @ y - NOISE * y)
    except Exception as failure:  # a compiler may fail in any way
        reason = str(failure).strip().splitlines()[-1:] or [type(failure).__name__]
        return check(f"KeOps fails on {device}: {reason[0]}; {instead}", False)
    seconds = time.perf_counter() - started
    return check(
        f"KeOps on {device}: compiled a formula in {seconds:.0f} s, relative error {error:.1e}",
        error < 1e-9,
    )


def examine(compile_keops: bool, say: Callable[[str], None] = print) -> bool:
    """Print all findings; returns whether all checks passed."""
    passed = True
    for part in (machine(), numerics(), extras(compile_keops)):
        for finding in part:
            say(str(finding))
            passed &= finding.passed
    return passed


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpx doctor", description=__doc__)
    parser.add_argument(
        "--keops", action="store_true", help="also compile a formula with KeOps (up to a minute)"
    )
    passed = examine(parser.parse_args(arguments).keops)
    print("all checks passed" if passed else "a check failed: see FAIL above")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
