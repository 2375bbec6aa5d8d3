"""What the pages of the methods have in common, made from the configs and the classes themselves.

``{method-facts} sgpr``: class, objective, what it takes and what it refuses, asked of the model.
``{method-options} sgpr``: every option with its default, from ``configs/approx/sgpr.yaml``.
``{method-figure} sgpr``: a run on little data, drawn by ``draw_methods.py`` when pages are built.
"""

from __future__ import annotations

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import draw_methods
import torch
from docutils import nodes
from docutils.parsers.rst import directives
from omegaconf import DictConfig
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from gpx.errors import GPXError
from gpx.methods.base.model import Model
from gpx.objectives import Objective
from gpx.options.build import build, build_model
from gpx.options.composition import composed
from gpx.options.config import CONFIGS
from gpx.options.names import with_option_names

FOLDER = Path(__file__).parent / "_method_figures"
LIKELIHOODS = (
    *("gaussian", "heteroscedastic", "student_t", "laplace", "bernoulli", "probit", "softmax"),
    *("ordinal", "poisson", "negative_binomial", "gamma", "beta"),
)
SEVERAL = "gaussian_outputs"
KINDS = {
    "exact": "the log marginal likelihood itself",
    "lower_bound": "a lower bound on the log marginal likelihood",
    "unbiased": "an unbiased estimate of a bound",
    "estimate": "an estimate of the log marginal likelihood, no bound",
}
OPTION = re.compile(r"^( +)([A-Za-z_]+):[ ]?([^#]*?)\s*(?:#\s*(.*))?$")


class Option(NamedTuple):
    """One line of a YAML file."""

    name: str
    default: str
    meaning: str


def options_of(method: str) -> list[Option]:
    """Options of ``approx=method`` with their defaults; counts of rows and inputs are left out.

    Args:
        method: name of a file of configs/approx.
    """
    found: list[Option] = []
    above: list[tuple[int, str]] = []
    group = ""
    for line in (CONFIGS / "approx" / f"{method}.yaml").read_text().splitlines():
        if re.match(r"[a-z]+:", line):
            group, above = line.split(":")[0], []
            continue
        match = OPTION.match(line)
        if match is None or group == "defaults":
            continue
        indent, name, value, meaning = match.groups()
        above = [(depth, part) for depth, part in above if depth < len(indent)]
        dotted = ".".join([group, *(part for _, part in above), name])
        if value == "":
            above.append((len(indent), name))
        if name == "_target_" or "facts.num_" in value or (value == "" and not meaning):
            continue
        found.append(Option(dotted, _default(value), meaning or ""))
    return found


def _default(value: str) -> str:
    """A default as a reader types it: an interpolation is that of the option that it names."""
    inner = re.fullmatch(r"\$\{(?:oc\.select:)?(.*)\}", value)
    if inner is None:
        return value
    named, _, otherwise = inner.group(1).partition(",")
    if named.startswith("facts."):
        return "that of the data"
    return _default(otherwise) if otherwise else f"that of {named}"


class Parts(NamedTuple):
    """What a method is made of, and whether it takes a likelihood."""

    model: Model
    objective: Objective
    config: DictConfig


@cache
def config_of(*options: str) -> DictConfig:
    """A composed config, kept: copy it before anything in it is changed."""
    return composed(options)


def parts_of(method: str, likelihood: str) -> Parts:
    """Model and objective of ``approx=method`` for 100 rows of two inputs.

    Raises:
        GPXError: the sentence with which they refuse the likelihood.
    """
    chosen = f"likelihood={likelihood}"
    by_likelihood = "by_likelihood" in (CONFIGS / "approx" / f"{method}.yaml").read_text()
    options = [f"approx={method}", *([chosen] if by_likelihood else [])]
    config = copy.deepcopy(config_of(*options))
    config.likelihood = config_of(chosen).likelihood
    facts = {"num_train": 100, "num_inputs": 2, "num_outputs": 2, "image_shape": [1, 2]}
    if "patch_size" in config.approx:
        config.approx.patch_size = [1, 2]
    config.facts.update({**facts, "num_classes": 3 if likelihood in ("softmax", "ordinal") else 2})
    config.trainer.memory_budget = 2**30
    dtype = getattr(torch, config.trainer.dtype)
    try:
        model = build_model(config).to(torch.device("cpu"), dtype)
        objective = build(config, "objective")
        objective.check(model)
    except GPXError as error:
        error.args = (with_option_names(str(error), config),)
        raise
    return Parts(model, objective, config)


@cache
def facts_of(method: str) -> dict[str, str]:
    """Rows of the table at the head of a page, in MyST Markdown."""
    accepted: dict[str, Parts] = {}
    refusals: dict[str, str] = {}
    for likelihood in (*LIKELIHOODS, SEVERAL):
        try:
            accepted[likelihood] = parts_of(method, likelihood)
        except GPXError as error:
            refusals[likelihood] = str(error)
    own = next(iter(accepted.values()))
    model, objective, config = own
    batches = config.trainer.get("batch_size") if objective.batching == "minibatch" else None
    rows = f"batches of {batches} rows" if batches else "all rows at every evaluation"
    yes = {
        "several targets at once (`likelihood=gaussian_outputs`)": SEVERAL in accepted,
        "rows in files (`data=stream`)": model.streams and objective.streams,
        "a known noise or a weight for each row": type(model).know_noise is not Model.know_noise,
        "several processes (`torchrun`)": _shared(own),
    }
    one_by_one = [f"`{name}`" for name in accepted if name != SEVERAL]
    lines = {
        "class": _link(model),
        "objective": f"{_link(objective)}: {KINDS[objective.kind]}; {rows}",
        "likelihoods": ", ".join(one_by_one or [f"`{SEVERAL}`"]) if refusals else "any",
        "takes": "; ".join(name for name, does in yes.items() if does),
        "refuses": "; ".join(name for name, does in yes.items() if not does),
    }
    typical = next((name for name in ("student_t", "gaussian") if name in refusals), None)
    if typical is not None:
        lines["and says"] = f"`likelihood={typical}`: *{refusals[typical]}*"
    return {name: line for name, line in lines.items() if line}


def _shared(own: Parts) -> bool:
    """Whether processes share the work, on any of the paths that the model may take."""
    if getattr(own.model, "solver", None) == "auto":
        own.model.solver = "iterative"
    return own.objective.shared_for(own.model, torch.zeros(100, 2)) is not None


def _link(thing: Model | Objective) -> str:
    """A link to the class in the reference."""
    window = "models" if isinstance(thing, Model) else "objectives"
    named = type(thing)
    if named.__name__.startswith("Parametrized"):  # torch renames what has positive parameters
        named = named.__mro__[1]
    return f"{{py:class}}`gpx.{window}.{named.__name__}`"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", r"\|") for c in line) + " |" for line in lines
    )


class MethodDirective(SphinxDirective):
    """One that takes the name of a method and writes Markdown."""

    required_arguments = 1
    has_content = False

    def markdown(self, method: str) -> str:
        """What stands in its place."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Parse it; the page is made anew where the config has changed."""
        method = self.arguments[0]
        self.env.note_dependency(str(CONFIGS / "approx" / f"{method}.yaml"))
        return self.parse_text_to_nodes(self.markdown(method))


class MethodFacts(MethodDirective):
    """Class, objective, likelihoods, what it takes and refuses, and a command."""

    option_spec: ClassVar[dict[str, Any]] = {
        "command": directives.unchanged,
        "kind": directives.unchanged,
    }

    def markdown(self, method: str) -> str:
        """A command and a table of two columns."""
        facts = dict(facts_of(method))
        if "kind" in self.options:
            head, _, tail = facts["objective"].partition(": ")
            facts["objective"] = f"{head}: {self.options['kind']}; {tail.rpartition('; ')[2]}"
        command = f"python train.py approx={method} {self.options.get('command', '')}".strip()
        (head, link), *rows = facts.items()
        return f"    {command}\n\n" + table((head, link), rows)


class MethodOptions(MethodDirective):
    """Every option and its default."""

    def markdown(self, method: str) -> str:
        """A table of three columns."""
        rows = [
            (f"`{option.name}`", f"`{option.default}`" if option.default else "", option.meaning)
            for option in options_of(method)
        ]
        escaped = [(name, default, _escaped(meaning)) for name, default, meaning in rows]
        return table(("option", "default", "meaning"), escaped)


def _escaped(text: str) -> str:
    """A comment of YAML as Markdown: stars, underscores and brackets are themselves."""
    return re.sub(r"([*_<>\[\]$])", r"\\\1", text)


class MethodFigure(MethodDirective):
    """A run on little data: its picture, and what it took."""

    def markdown(self, method: str) -> str:
        """A figure with the call that made it; nothing where figures are switched off."""
        if not self.config.method_figures:
            return ""
        drawn = draw_methods.drawn(method, FOLDER)
        there = Path(self.env.doc2path(self.env.docname)).parent
        path = Path("../" * len(there.relative_to(self.env.srcdir).parts), "_method_figures")
        picture = f"```{{figure}} {path / f'{method}.png'}\n:alt: {drawn.alt}\n:width: 90%\n\n"
        return f"{picture}{drawn.caption}\n```\n"


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the three directives, and ``method_figures`` to do without figures."""
    app.add_config_value("method_figures", True, "env", bool)
    app.add_directive("method-facts", MethodFacts)
    app.add_directive("method-options", MethodOptions)
    app.add_directive("method-figure", MethodFigure)
    return {"parallel_read_safe": False}
