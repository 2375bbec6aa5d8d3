"""The end of a run: posterior, metrics, baselines and figures, written and reported."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig
from torch.distributions import Distribution

from gpx.calibration.base import in_words
from gpx.data import Dataset
from gpx.methods.base.objective import Evidence
from gpx.metrics import baselines
from gpx.options.build import fixed_parameters
from gpx.options.groups import NODES
from gpx.runs.certification import CertifyOptions, certify_run, chosen_points, write_report
from gpx.runs.data import chosen_by_data
from gpx.runs.environment import peak_memory_mib
from gpx.runs.figures.model import draw_model
from gpx.runs.hyperparameters import shown as shown_hyperparameters
from gpx.runs.predictor import Predictor
from gpx.runs.prepared_run import PreparedRun
from gpx.runs.results import draw_results, summary
from gpx.runs.streaming import streaming_facts
from gpx.sampling.seeds import stream
from gpx.training.checkpoint import save_checkpoint
from gpx.training.trainer import FitResult


def finish(state: PreparedRun, fit: FitResult) -> dict[str, Any]:
    """Compute and write posterior, metrics and figures; returns the contents of metrics.json.

    metrics.json is written last, as it marks a finished run.
    """
    data, predictor = state.data, state.predictor()
    modelled = predictor.modelled(state.test[0], data.test_noise) if data.num_test else None
    raw = None if modelled is None else predictor.in_targets(modelled)
    kept = fit.state | _calibrate(state, predictor) | _prediction_state(state, predictor)
    save_checkpoint(state.folder.checkpoint, kept)
    evidence = _final_evidence(state)
    predictive = raw
    if modelled is not None and state.calibration is not None:
        predictive = predictor.in_targets(state.calibration(modelled))
    scores = state.evaluate(predictive)
    metrics: dict[str, Any] = {f"test.{k}": v for k, v in scores.items()}
    if state.calibration is not None:
        metrics |= {f"uncalibrated.{k}": v for k, v in state.evaluate(raw).items()}
        metrics |= {f"calibration.{k}": v for k, v in state.calibration.facts().items()}
    metrics |= _facts(state, fit, evidence)
    if "train.mnlp" in metrics and data.num_test:  # reported by models that can over-fit
        # of the model itself: training targets are predicted without recalibration
        test = metrics.get("uncalibrated.mnlp", metrics["test.mnlp"])
        metrics["test.mnlp_gap"] = test - metrics["train.mnlp"]
    metrics |= {f"predict.{name}": value for name, value in predictor.posterior.facts().items()}
    if state.options.baselines and data.num_test:
        for name, values in baselines(data.in_memory).items():
            metrics |= {f"baseline.{name}.{key}": value for key, value in values.items()}
    if state.options.certify:
        points = chosen_points(data)
        report = certify_run(predictor, state.config, data, points, CertifyOptions())
        write_report(report, state.folder)
        metrics |= {f"certificate.{name}": value for name, value in report.values().items()}
        state.console.say(report.sentence())
    if state.options.figures and predictive is not None:
        before = None if state.calibration is None else raw
        _draw(state, predictor, predictive, before, fit.steps)
    numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, (int, float))}
    shown = {k: v for k, v in numbers.items() if k.startswith(("test.", "train."))}
    state.folder.write_json(state.folder.metrics, metrics)
    for logger in state.loggers:
        logger.metrics(fit.steps, scores)
        logger.outcome(settings(state.config), shown)
    if state.optimizer.finish():  # drop state that only resuming would need
        ended = {"optimizer": state.optimizer.state_dict(), "ended": fit.reason}
        save_checkpoint(state.folder.checkpoint, kept | ended)
    for line in summary(metrics):
        state.console.say(line)
    learned = shown_hyperparameters(predictor.hyperparameters)
    if learned:
        scaled = "inputs and target" if data.task == "regression" else "inputs"
        state.console.say(f"hyperparameters (for standardised {scaled}): {learned}")
    state.console.say(f"run folder: {state.folder.path}")
    return metrics


def _prediction_state(state: PreparedRun, predictor: Predictor) -> dict[str, Any]:
    """Entries of the checkpoint for predictions, which need neither data nor model."""
    data = state.data
    return {
        "posterior": predictor.posterior.state_dict(),
        "likelihood": predictor.likelihood.state_dict(),
        "scaler": data.scaler.state_dict(),
        "input_names": list(data.input_names),
        "target_name": data.target_name,
        "labels": list(data.labels),
        "target_names": list(data.target_names),
        "coding": None if data.coding is None else data.coding.state(),
        "target_transform": data.target_transform and data.target_transform.state(),
    }


def _facts(state: PreparedRun, fit: FitResult, evidence: Evidence) -> dict[str, Any]:
    """Entries of metrics.json on model, data and training."""
    data, model = state.data, state.model
    found: dict[str, Any] = {
        "train.evidence": evidence.value.item(),
        "train.evidence_kind": evidence.kind,
        "train.objective": type(state.objective).__name__,
        "train.steps": fit.steps,
        "train.seconds": fit.seconds,
        "train.start.seconds": fit.seconds_of_start,
        "train.stopped": state.with_option_names(fit.reason),
        "model.name": type(model).__name__,
    }
    if fit.cut_short:
        found["train.cut_short"] = state.with_option_names("; ".join(fit.cut_short))
    for name in ("choice", "kernel_choice"):
        if chosen_by_data(state.config, name):
            found[f"model.{name}"] = chosen_by_data(state.config, name)
    found |= {
        "model.num_parameters": sum(p.numel() for p in model.parameters()),
        "data.name": data.name,
        "data.split": data.split,
        "data.task": data.task,
        "data.num_test": data.num_test,
        "memory.peak_mib": peak_memory_mib(state.device),
    }
    found |= _target_counts(data)
    found |= {f"train.{name}": value for name, value in evidence.facts.items()}
    if data.sample is not None:
        found |= streaming_facts(data, state.train[0], state.options.batch_size, fit)
    if data.target_transform is not None:  # log p(y) = log p(T(y)) + log dT/dy of every row
        slopes = data.target_transform.log_slope(data.scaler.original_mean(data.train_y))
        gained = float(slopes.sum()) + data.num_train * float(data.scaler.target_scale.log())
        found["train.log_jacobian"] = gained
        if "train.mnlp" in found:
            found["train.mnlp"] -= gained / data.num_train
    return found


def _target_counts(data: Dataset) -> dict[str, int]:
    """Number of rows with each target, if some of several targets are missing."""
    if data.sample is not None or not (data.train_y.isnan().any() or data.test_y.isnan().any()):
        return {}
    return {
        f"data.{part}_targets.{name}": int(count)
        for part, y in (("train", data.train_y), ("test", data.test_y))
        for name, count in zip(data.target_names, (~y.isnan()).sum(0).tolist(), strict=True)
    }


def _calibrate(state: PreparedRun, predictor: Predictor) -> dict[str, Any]:
    """Fit the recalibration on the held-out rows; returns its entries of the checkpoint."""
    if state.calibration is None or state.held_out is None:
        return {}
    x, y = state.held_out
    state.calibration.fit(predictor.modelled(x), y)
    predictor.calibration = state.calibration
    found = in_words(state.calibration.facts())
    state.console.say(f"calibrated on {len(y):,} held-out points: {found}")
    return {"calibration": state.calibration.state_dict()}


def _final_evidence(state: PreparedRun) -> Evidence:
    """Evidence of the trained model over all training data."""
    generator = stream(state.config.seed, "final evidence", state.device)
    return state.optimizer.evidence_at_end(
        state.model,
        state.objective,
        *state.train,
        batch_size=state.options.batch_size,
        generator=generator,
    )


def _draw(
    state: PreparedRun,
    predictor: Predictor,
    predictive: Distribution,
    before: Distribution | None,
    step: int,
) -> None:
    """Draw figures, as PNG files and for the loggers; ``before`` as in ``draw_results``."""
    pictures = draw_results(state.data.in_memory, predictor, predictive, before)
    pictures |= draw_model(state.data.in_memory, predictor, state.model, state.console.say)
    for name, figure in pictures.items():
        picture = state.folder.write_figure(name, figure)
        for logger in state.loggers:
            logger.figure(name, picture, step)


def settings(config: DictConfig) -> dict[str, str | bool | float]:
    """Names of classes and single options of a run, for tables that compare runs.

    Paths, facts of the data, and options of logging are left out.
    """
    found: dict[str, str | bool | float] = {"seed": config.seed}
    for group in NODES:
        node = config.get(group)
        if not isinstance(node, DictConfig):
            continue
        for option, value in node.items():
            name = str(option)
            if name == "_target_":
                found[group] = str(value).rpartition(".")[2]
            elif isinstance(value, (str, bool, int, float)) and name not in HIDDEN_OPTIONS:
                found[f"{group}.{name}"] = value
    fixed = [".".join(names) for names in fixed_parameters(config)]
    return found | ({"fixed": ", ".join(fixed)} if fixed else {})


HIDDEN_OPTIONS = (
    *("root", "path", "test_path", "num_inputs", "num_data", "ard_num_dims", "memory_budget"),
    *("log_every", "eval_every", "checkpoint_seconds", "tensorboard", "figures", "baselines"),
)
"""Options that are left out of tables that compare runs."""
