"""`-m` through Hydra's launchers, each skipped where its package is not installed.

The command runs in a process of its own: what matters is what its workers, which are processes
again, find there: configuration, folder, errors.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from interp import results

ROOT = Path(__file__).parent.parent
COMMAND = ["-m", "experiments.ablation", "-m", "model=tiny_gpt2", "n_examples=4"]
CHOICES = ["task.min_accuracy=0", "heads=[L0H1,L2H3]", "bootstrap_draws=50"]
LAUNCHERS = {
    "joblib": ["hydra.launcher.n_jobs=2"],
    "ray": ["+hydra.launcher.ray.init.num_cpus=2"],
    "submitit_local": ["hydra.launcher.cpus_per_task=1"],
}


def run(folder, *overrides):
    """Run a multirun in a folder; return its exit status and what it wrote to stderr."""
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *COMMAND, *CHOICES, *overrides],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def basic(tmp_path_factory):
    """The tables as they come without a launcher."""
    folder = tmp_path_factory.mktemp("basic") / "here"
    status, err = run(folder, "ablation=zero,mean")
    assert status == 0, err
    return tables(folder)


def tables(folder):
    """Read the summaries under a folder, in a fixed order."""
    summary = results.load(folder / "results" / "ablation")
    return summary.sort_values(["ablation", "layer", "head"]).reset_index(drop=True)


@pytest.fixture(params=LAUNCHERS)
def launcher(request):
    """The overrides that choose a launcher, of those installed."""
    package = f"hydra_{request.param.partition('_')[0]}_launcher"
    if find_spec("hydra_plugins") is None or find_spec(f"hydra_plugins.{package}") is None:
        pytest.skip(f"{package.replace('_', '-')} is not installed")
    return [f"hydra/launcher={request.param}", *LAUNCHERS[request.param]]


def test_a_launcher_does_the_same_and_bad_input_stops_only_its_job(launcher, basic, tmp_path):
    folder = tmp_path / "here"
    status, err = run(folder, "ablation=zero,median,mean", *launcher)
    assert status == 2, err
    assert "\nerror: ablation=median" in f"\n{err}"
    assert "Traceback" not in err
    assert "Warning" not in err
    found = tables(folder)
    assert list(found["ablation"]) == list(basic["ablation"])
    for column in ("clean", "ablated", "damage", "ci_low", "ci_high", "p_value"):
        np.testing.assert_allclose(found[column], basic[column], atol=1e-4)


def test_shards_share_a_folder_and_come_to_the_tables_of_one_process(launcher, basic, tmp_path):
    folder = tmp_path / "here"
    status, err = run(folder, "shard=0/2,1/2", *launcher)
    assert status == 0, err
    [record] = folder.rglob("run.json")
    rows = results.load(record.parent, "effects")
    assert not rows.duplicated(["layer", "head", "example"]).any()
    assert len(rows) == 2 * 4
    found, whole = tables(folder), basic[basic["ablation"] == "mean"].reset_index(drop=True)
    for column in ("layer", "head", "clean", "ablated", "damage", "ci_low", "ci_high", "p_value"):
        np.testing.assert_allclose(found[column], whole[column], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "extra"), [("joblib", "joblib"), ("submitit_slurm", "slurm"), ("ray", "ray")]
)
def test_a_launcher_that_is_not_installed_is_named_with_what_installs_it(name, extra, tmp_path):
    hide = (  # as where no plugin is installed
        "import runpy, sys; sys.modules['hydra_plugins'] = None; "
        "runpy.run_module('experiments.ablation', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", hide, "-m", "model=tiny_gpt2", f"hydra/launcher={name}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert (
        line == f"error: hydra/launcher={name} is not installed: pip install 'manyheads[{extra}]'"
    )
    assert not list(tmp_path.iterdir())
