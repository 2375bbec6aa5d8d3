"""The files of a run folder: reading, writing and locking."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gpx.atomic_file import write_atomically
from gpx.data.folders import MASK_CHECKSUM
from gpx.errors import CheckpointError, ConfigError
from gpx.options.old import current
from gpx.runs.trust import require_known_classes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]


class RunFolder:
    """Paths and small files of a run.

    The files are ``config.yaml`` (resolved), ``environment.json``, ``checkpoint.pt`` (training
    state and, once finished, everything that prediction needs), ``metrics.json``, ``figures/``, and
    TensorBoard events. These are in the folder itself, as TensorBoard names a run by the folder of
    its events; runs of earlier versions keep them in ``tensorboard/``.
    """

    def __init__(self, path: Path | str) -> None:
        if not isinstance(path, (str, Path)):
            raise ConfigError(f"the path of a run folder must be text or a Path, got {path!r}")
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.environment = self.path / "environment.json"
        self.checkpoint = self.path / "checkpoint.pt"
        self.metrics = self.path / "metrics.json"
        self.figures = self.path / "figures"

    def holds_a_run(self) -> bool:
        """Whether the folder holds files of a run."""
        return self.config.exists() or self.checkpoint.exists() or self.metrics.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running in this folder while inside.

        Raises:
            CheckpointError: another process is running in this folder.
        """
        if fcntl is None:  # Windows
            yield
            return
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CheckpointError(
                    f"another process is running in {self.path}: wait until it ends, or stop it"
                ) from error
            except OSError:  # a file system without locks
                pass
            yield
        finally:
            os.close(handle)

    def clear_leftovers(self) -> None:
        """Remove temporary files of a process that was killed while writing."""
        for file in (self.config, self.environment, self.checkpoint, self.metrics):
            for part in self.path.glob(f".{file.name}.*.tmp"):
                part.unlink(missing_ok=True)

    def read_config(self, trust: Sequence[str] | str = ()) -> DictConfig:
        """The resolved config, checked to name only classes of gpx and of ``trust``.

        Args:
            trust: further packages whose classes it may name.

        Raises:
            CheckpointError: the folder or file is missing or unreadable, or names another class;
                see ``gpx.runs.trust``.
        """
        config = self.read_own_config()
        require_known_classes(config, self.config, trust)
        return config

    def read_own_config(self) -> DictConfig:
        """The config without a check of its classes, for a run that this process trained itself."""
        if not self.path.is_dir():
            raise CheckpointError(f"there is no run folder {self.path}{self._neighbours()}")
        if not self.config.is_file():
            raise CheckpointError(
                f"{self.path} is not a run folder: it has no config.yaml, which is written before "
                "the first step; start a new run if this one was stopped before that"
            )
        try:
            text = self.config.read_text(encoding="utf-8")
            # nested references can make a small file fill the memory; each has a star
            if "*" in text and any(isinstance(e, yaml.AliasEvent) for e in yaml.parse(text)):
                raise CheckpointError(
                    f"{self.config} holds YAML references, which gpx never writes"
                )
            content = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)
            config = OmegaConf.create(current(content))
        except (yaml.YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
            why = " ".join(str(error).split())  # of YAML over several lines
            raise CheckpointError(f"{self.config} cannot be read: {why}") from error
        except RecursionError as error:
            raise CheckpointError(f"{self.config} cannot be read: nested too deeply") from error
        if not isinstance(config, DictConfig) or "approx" not in config:
            raise CheckpointError(f"{self.config} is not the config of a gpx run")
        return config

    def _neighbours(self) -> str:
        parent = self.path.parent
        if not parent.is_dir():
            return ""
        runs = sorted(p for p in parent.iterdir() if (p / "config.yaml").exists())
        return f"; runs beside it: {', '.join(str(p) for p in runs[-3:])}" if runs else ""

    def write_config(self, config: DictConfig) -> None:
        """Write the resolved config."""
        write_atomically(self.config, OmegaConf.to_yaml(config, resolve=True))

    def events(self) -> Path:
        """The folder of TensorBoard events; raises CheckpointError if it is a link."""
        earlier = self.path / "tensorboard"
        return self.own_folder(earlier) if earlier.exists() else self.path

    def own_folder(self, path: Path) -> Path:
        """Create ``path`` inside the run folder if it is missing, and return it.

        Raises:
            CheckpointError: it is a link, which may lead to other files of the user.
        """
        if path.is_symlink():
            raise CheckpointError(
                f"{path} is a link, and gpx writes only inside run folders: remove it"
            )
        path.mkdir(exist_ok=True)
        return path

    def write_figure(self, name: str, figure: Figure) -> bytes:
        """Write ``figures/<name>.png``, and return what is in it.

        A link of that name is replaced, never followed.
        """
        from gpx.runs.figures.picture import png  # Matplotlib is slow to import

        picture = png(figure)
        write_atomically(self.own_folder(self.figures) / f"{name}.png", picture)
        return picture

    def write_json(self, path: Path, content: dict[str, Any]) -> None:
        """Write a JSON file; NaN and infinities, which JSON does not have, become null."""
        write_atomically(path, json.dumps(_plain(content), indent=2, allow_nan=False) + "\n")

    def write_text(self, path: Path, text: str) -> None:
        """Write a text file atomically."""
        write_atomically(path, text)

    def add_environment(self, record: dict[str, Any]) -> None:
        """Write environment.json; the records of resumed sessions are appended to ``resumed``."""
        self.require_same_data(record)
        first = self.read_environment()
        if first is not None:
            record = {**first, "resumed": [*first.get("resumed", []), record]}
        self.write_json(self.environment, record)

    def read_environment(self) -> dict[str, Any] | None:
        """Contents of environment.json; None if the file does not exist.

        Raises:
            CheckpointError: it is damaged.
        """
        if not self.environment.exists():
            return None
        try:
            record = json.loads(self.environment.read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{self.environment} cannot be read ({error}); restore or remove it"
            ) from error
        sound = isinstance(record, dict) and isinstance(record.get("resumed", []), list)
        if not sound or not isinstance(record.get("data_checksums") or {}, dict):
            raise CheckpointError(
                f"{self.environment} is not the record of a run; restore or remove it"
            )
        return record

    def require_same_data(self, record: dict[str, Any]) -> None:
        """Raise CheckpointError if the data differ from those recorded in environment.json.

        Only checksums are compared, in order of reading: files may be moved or renamed.
        """
        before = (self.read_environment() or {}).get("data_checksums")
        now = record.get("data_checksums") or {}
        if not any(name.startswith(MASK_CHECKSUM) for name in before or {}):  # not recorded earlier
            now = {k: v for k, v in now.items() if not k.startswith(MASK_CHECKSUM)}
        if before is None or list(before.values()) == list(now.values()):
            return
        changed = sorted(set(before.items()) ^ set(now.items())) or list(now.items())
        raise CheckpointError(
            f"the data of the run in {self.path} have changed since it started "
            f"({', '.join(dict.fromkeys(name for name, _ in changed))}); "
            "restore them, or start a new run"
        )


def _plain(value: Any) -> Any:
    """``value`` with None in place of NaN and infinities."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
