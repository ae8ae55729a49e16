"""What every experiment's command shares: Hydra around it, one clear line for bad input.

config in, tables out      constants live in conf/, functions get them as arguments
where results go           results/<experiment>/<model>/<task>-<ablation>,<what differs from conf>
bad input                  one line on stderr and a non-zero exit; no traceback, nothing left behind
faults of the program      keep their traceback
"""

import difflib
import errno
import hashlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hydra
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from interp.errors import InputError

CONF = Path(__file__).parent.parent / "conf"
FILING = (errno.ENOENT, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EEXIST)
"""What goes wrong with folders and disks, and is not the program's fault."""
NULLABLE = ("n_examples",)
"""Numbers that may be null."""


def command(name: str) -> Callable[[Callable[[DictConfig, Path], None]], Callable[[], None]]:
    """Turn `experiment(cfg, folder)` into a command with the configuration `conf/<name>.yaml`."""

    def wrap(experiment: Callable[[DictConfig, Path], None]) -> Callable[[], None]:
        def job(cfg: DictConfig) -> None:
            folder = Path(HydraConfig.get().runtime.output_dir)
            if folder.is_relative_to(Path.cwd()):
                folder = folder.relative_to(Path.cwd())
            is_multirun = HydraConfig.get().mode == RunMode.MULTIRUN
            with _reporting(folder, stay=is_multirun):
                OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
                _check_types(cfg)
                experiment(cfg, folder)

        def main() -> None:
            os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us instead of being printed
            warnings.filterwarnings("ignore", module="hydra|transformer_lens|transformers|torch")
            with _reporting(None, stay=False):
                hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(job)()

        return main

    return wrap


@contextmanager
def _reporting(folder: Path | None, *, stay: bool) -> Iterator[None]:
    """Print bad input as one line and exit; with `stay`, let a multirun go on to its next job."""
    try:
        try:
            yield
        finally:
            if folder is not None:
                _remove_if_empty(folder)
    except KeyboardInterrupt:
        print("\nstopped: the same command goes on where this one was", file=sys.stderr)
        os._exit(130)  # at once: worker threads may be deep in a matrix product
    except (InputError, HydraException, OmegaConfBaseException) as error:
        if not hasattr(error, "is_reported"):
            print(f"error: {_one_line(error)}", file=sys.stderr)
        if not stay:
            sys.exit(getattr(error, "status", 2))
        error.is_reported = True  # type: ignore[union-attr]
        raise
    except OSError as error:
        if error.errno not in FILING or error.filename is None:
            raise
        print(f"error: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(2)


def _remove_if_empty(folder: Path) -> None:
    """Take back the folders that Hydra made for nothing."""
    places = [folder] if folder.is_absolute() else [folder, *folder.parents]
    with suppress(OSError):  # at the first one that holds anything
        for place in places:
            place.rmdir()


def _one_line(error: Exception) -> str:
    """Put an error into one line; for a misspelt key, add the nearest that exists."""
    cause = error
    while cause.__cause__ is not None and not isinstance(cause, InputError):
        cause = cause.__cause__  # type: ignore[assignment]
    text = " ".join(str(cause if str(cause) else error).split())
    key = re.search(r"Key '([\w.]+)' is not in struct", text)
    if key:
        known = sorted(_keys())
        near = difflib.get_close_matches(key[1], known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        full = re.search(r"full_key: ([\w.]+)", text)
        return f"there is no key '{full[1] if full else key[1]}' in the configuration; {hint}"
    if "Missing mandatory value" in text:
        name = getattr(cause, "full_key", None) or "a value"
        return f"{name} is missing: set {name}=…"
    return text.partition(" Config search path:")[0]


def _check_types(cfg: DictConfig) -> None:
    """Check that numbers are numbers and switches are switches, as they are in conf/.

    Raises:
        InputError: A value is of another type, or a number is negative.
    """
    default = _leaves(plain(_defaults(HydraConfig.get())))
    for key, value in _leaves(plain(cfg)).items():
        known = default.get(key)
        if isinstance(known, bool) and not isinstance(value, bool):
            raise InputError(f"{key}={value}: true or false")
        if isinstance(known, bool) or not isinstance(known, int | float):
            continue
        if value is None and key in NULLABLE:
            continue
        allowed = int if isinstance(known, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed) or value < 0:
            what = "a whole number" if allowed is int else "a number"
            raise InputError(f"{key}={value}: {what} of at least 0, such as {known}")
        if isinstance(known, float):
            OmegaConf.update(cfg, key, float(value))  # 0 is 0.0


def _defaults(hydra_cfg: Any) -> DictConfig:
    """Compose what the configuration would be without the user's values, for the same groups."""
    choices = hydra_cfg.runtime.choices.items()
    return compose(
        hydra_cfg.job.config_name,
        [f"{group}={choice}" for group, choice in choices if not group.startswith("hydra/")],
    )


def _keys() -> set[str]:
    """List the keys of all configuration files."""
    keys = {group.name for group in CONF.iterdir() if group.is_dir()}
    for file in CONF.rglob("*.yaml"):
        keys |= {str(key) for key in OmegaConf.load(file)}
    return keys - {"defaults", "hydra", "_target_"}


def build(node: DictConfig, *args: Any) -> Any:
    """Call a node's `_target_` with the node's other entries.

    Unlike Hydra's `instantiate` it copies nothing and lets the target's own errors through.

    Raises:
        InputError: An entry is no argument of the target.
    """
    entries = {str(key): node[key] for key in node if key != "_target_"}
    target = get_method(node["_target_"])
    unknown = set(entries) - set(inspect.signature(target).parameters)
    if unknown:
        raise InputError(f"{unknown.pop()} is no setting of {node['_target_']}")
    return target(*args, **entries)


def folder(*, _root_: DictConfig) -> str:
    """Name a run's folder: model, task and ablation, then every setting that differs from conf/."""
    choices = _root_.hydra.runtime.choices
    default = _defaults(_root_.hydra)
    ours, theirs = (_leaves(plain(cfg, resolve=False)) for cfg in (_root_, default))
    differing = {key: value for key, value in ours.items() if theirs.get(key) != value}
    model = choices.get("model", "all")
    for key in ("model.name", "model.path"):
        if key in differing:
            model = _slug(differing.pop(key))
    what = [str(choices[g]) for g in ("task",) if g in choices]
    if "ablation" in ours:
        what.append(str(ours["ablation"]))
        differing.pop("ablation", None)
    name = ",".join(
        ["-".join(what) or "default", *(f"{k}={_slug(v)}" for k, v in sorted(differing.items()))]
    )
    if len(name) > 120:
        name = f"{'-'.join(what)},{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{model}/{name}"


def plain(cfg: DictConfig, *, resolve: bool = True) -> dict[str, Any]:
    """Take the experiment's part of a configuration, as plain dictionaries and lists."""
    ours = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    tree: Any = OmegaConf.to_container(ours, resolve=resolve, throw_on_missing=False)
    return tree


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        leaves |= _leaves(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return leaves


def _slug(value: Any) -> str:
    """Write a value so that it can stand in a folder's name; a path by its last part and a hash."""
    if isinstance(value, list):
        return "+".join(map(_slug, value))
    text = str(value)
    if "/" in text:
        digest = hashlib.sha256(str(Path(text).expanduser().resolve()).encode()).hexdigest()[:6]
        text = f"{Path(text).name}-{digest}"
    return re.sub(r"[^\w.=-]+", "_", text)


OmegaConf.register_new_resolver("folder", folder, replace=True)
