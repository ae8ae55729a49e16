"""What every experiment's command shares: Hydra around it, one clear line for bad input.

config in, tables out      constants live in conf/, functions get them as arguments
where results go           results/<experiment>/<model>/<task>-<ablation>,<what differs from conf>
bad input                  one line on stderr and a non-zero exit; no traceback, nothing left behind
faults of the program      keep their traceback
-m, several runs           each ends for itself; hydra/launcher= says where they run (README.md)
"""

import ctypes
import difflib
import errno
import hashlib
import inspect
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hydra
import psutil
import torch
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from interp.errors import InputError
from interp.runs import leaves

CONF = Path(__file__).parent.parent / "conf"
LAUNCHERS = {"joblib": "joblib", "ray": "ray", "submitit": "slurm"}
"""The launchers that are packages of their own, and the extra of ours that installs each."""
ENVIRONMENT = {
    "TQDM_MININTERVAL": "10",  # (read by worker processes, whose bars share a screen or a file)
    "RAY_COLOR_PREFIX": "0",
    "RAY_DEDUP_LOGS": "0",  # lines that two jobs print alike are printed twice
    "RAY_USAGE_STATS_ENABLED": "0",  # nobody is called up unasked
}
"""For the launchers; what the user's own environment says goes first."""
FILING = (errno.ENOENT, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EEXIST)
"""What goes wrong with folders and disks, and is not the program's fault."""
NULLABLE = ("n_examples",)
"""Numbers that may be null."""
TEXTS = ("sentence",)
"""Keys whose values are taken as they are typed."""
PASSING = (
    *("shard", "top", "sentence", "ablate", "ablate_with", "roles"),
    *("save", "save_order", "speed"),
)
"""Keys that do not change what a run comes to: they neither name its folder nor tell runs apart."""


def command(name: str) -> Callable[[Callable[[DictConfig, Path], None]], Callable[[], None]]:
    """Turn `experiment(cfg, folder)` into a command with the configuration `conf/<name>.yaml`."""

    def wrap(experiment: Callable[[DictConfig, Path], None]) -> Callable[[], None]:
        def job(cfg: DictConfig) -> None:
            is_multirun = HydraConfig.get().mode == RunMode.MULTIRUN
            launcher = HydraConfig.get().launcher
            is_worker = is_multirun and "basic_launcher" not in launcher._target_
            if is_worker:
                _settle(HydraConfig.get().runtime.cwd, launcher.get("cpus_per_task"))
            folder = Path(HydraConfig.get().runtime.output_dir)
            if folder.is_relative_to(Path.cwd()):
                folder = folder.relative_to(Path.cwd())
            with _reporting(folder, stay=is_multirun, is_worker=is_worker):
                OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
                _check_types(cfg)
                experiment(cfg, folder)

        def main() -> None:
            os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us instead of being printed
            for key, value in ENVIRONMENT.items():
                os.environ.setdefault(key, value)
            _settle(".")
            sys.argv[1:] = map(quoted, sys.argv[1:])
            with _reporting(None, stay=False):
                hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(job)()

        return main

    return wrap


def quoted(argument: str) -> str:
    """Quote a text for Hydra, to which commas and apostrophes mean something; others stay."""
    key, _, text = argument.partition("=")
    if key not in TEXTS or text[:1] in ("'", '"'):
        return argument
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'{key}="{escaped}"'


def path_argument(path: str | Path) -> str:
    """Write `model.path=…` so that neither the shell nor Hydra stumbles over the path."""
    return f"'model.path=\"{path}\"'" if set(str(path)) & set(",= ") else f"model.path={path}"


def _settle(folder: str, n_threads: int | None = None) -> None:
    """Make a process one of this command's: where the user stands, with its share of the cores.

    joblib and Ray share the cores among their workers by themselves, submitit does not.
    """
    warnings.filterwarnings("ignore", module="hydra|transformer_lens|transformers|torch")
    warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/ray' is validated")
    os.chdir(folder)
    keep_memory()
    if n_threads is not None:
        torch.set_num_threads(n_threads)


@contextmanager
def _reporting(folder: Path | None, *, stay: bool, is_worker: bool = False) -> Iterator[None]:
    """Print bad input as one line and exit; with `stay`, let a multirun go on to its next job."""
    try:
        try:
            yield
        finally:
            if folder is not None:
                _remove_if_empty(folder)
    except KeyboardInterrupt:
        if not is_worker:
            print("\nstopped: the same command goes on where this one was", file=sys.stderr)
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()
        os._exit(130)  # at once: worker threads may be deep in a matrix product
    except Exception as error:
        if not _is_bad_input(error):
            if not is_worker:
                raise
            raise RuntimeError(traceback.format_exc()) from None  # the others are lost on the way
        if getattr(error, "printed_on", None) != _stderr():
            print(f"error: {_one_line(error)}", file=sys.stderr)
        status = getattr(error, "status", 2)
        if not stay:
            sys.exit(status)
        failure = InputError(_one_line(error), status)  # survives being sent between processes
        failure.printed_on = _stderr()  # type: ignore[attr-defined]
        raise failure from None


def _is_bad_input(error: Exception) -> bool:
    """Tell what the user can mend from faults of the program."""
    known = (InputError, HydraException, OmegaConfBaseException)
    if isinstance(error, known) or type(error) is ConnectionError:  # (Ray's, of a wrong address)
        return True
    if isinstance(error, OSError):
        return error.errno in FILING and error.filename is not None
    return str(error).startswith("Unknown plugin class")  # conf/ has the file, Python no package


def _stderr() -> tuple[int, int]:
    """Identify what stderr is connected to: a worker's may be the user's screen or a log file."""
    found = os.fstat(2)
    return found.st_dev, found.st_ino


def keep_memory() -> None:
    """Let this process keep freed memory for its next tensor, instead of giving it back each time.

    By default glibc takes every large tensor fresh from the system, which clears it page by page: a
    tenth of the time of a sweep that reads all logits. Other C libraries are left as they are.
    """
    with suppress(AttributeError, OSError, TypeError):  # no mallopt, or no such platform
        mallopt = ctypes.CDLL(None).mallopt
        if mallopt(-3, 1 << 30):  # M_MMAP_THRESHOLD, which some versions refuse
            mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD, which would do harm alone


def _remove_if_empty(folder: Path) -> None:
    """Take back the folders that Hydra made for nothing."""
    places = [folder] if folder.is_absolute() else [folder, *folder.parents]
    with suppress(OSError):  # at the first one that holds anything
        for place in places:
            place.rmdir()


def _one_line(error: Exception) -> str:
    """Put an error into one line; for a misspelt key, add the nearest that exists."""
    if isinstance(error, OSError) and error.errno in FILING:
        return f"{error.filename} cannot be written: {error.strerror}"
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
    launcher = re.search(r"hydra/launcher/(\w+)|hydra_plugins\.hydra_(\w+)_launcher\.", text)
    if launcher:
        name = launcher[1] or launcher[2]
        extra = LAUNCHERS.get(name.partition("_")[0])
        if extra:
            return f"hydra/launcher={name} is not installed: pip install 'manyheads[{extra}]'"
    return text.partition(" Config search path:")[0]


def _check_types(cfg: DictConfig) -> None:
    """Check that numbers are numbers and switches are switches, as they are in conf/.

    Raises:
        InputError: A value is of another type, or a number is negative.
    """
    default = leaves(plain(_defaults(HydraConfig.get())))
    for key, value in leaves(plain(cfg)).items():
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
    ours, theirs = (leaves(plain(cfg, resolve=False)) for cfg in (_root_, default))
    differing = {
        key: value
        for key, value in ours.items()
        if theirs.get(key) != value and key.partition(".")[0] not in PASSING
    }
    model = choices.get("model", choices.get("training", "all"))
    for key in ("model.name", "model.path"):
        if key in ours:
            model = _slug(ours[key])
            differing.pop(key, None)
    what = [str(choices[g]) for g in ("task", "corpus") if g in choices]
    if "ablation" in ours:
        what.append(str(_root_.ablation))
        differing.pop("ablation", None)
    begins = "-".join(what) or "default"
    name = ",".join([begins, *(f"{k}={_slug(v)}" for k, v in sorted(differing.items()))])
    if len(name) > 120:
        name = f"{begins},{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{model}/{name}"


def plain(cfg: DictConfig, *, resolve: bool = True) -> dict[str, Any]:
    """Take the experiment's part of a configuration, as plain dictionaries and lists."""
    ours = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    tree: Any = OmegaConf.to_container(ours, resolve=resolve, throw_on_missing=False)
    return tree


def identity(cfg: DictConfig) -> dict[str, Any]:
    """Take what tells a run from others."""
    return {key: value for key, value in plain(cfg).items() if key not in PASSING}


def _slug(value: Any) -> str:
    """Write a value so that it can stand in a folder's name; a path by its last part and a hash."""
    if isinstance(value, list):
        return ("-" if value and isinstance(value[0], list) else "+").join(map(_slug, value))
    text = str(value)
    if "/" in text:
        digest = hashlib.sha256(str(Path(text).expanduser().resolve()).encode()).hexdigest()[:6]
        text = f"{Path(text).name}-{digest}"
    return re.sub(r"[^\w.=-]+", "_", text)


OmegaConf.register_new_resolver("folder", folder, replace=True)
OmegaConf.register_new_resolver(
    "if", lambda test, yes, no: no if test is None else yes, replace=True
)
