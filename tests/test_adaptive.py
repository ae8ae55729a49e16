"""Adaptive sweeps: rounds of examples, on damages that are planted and so known."""

import numpy as np
import pandas as pd
import pytest
from test_gates import family, prompt_task

from interp import results, statistics, sweep
from interp.gates import Zero
from interp.heads import all_heads
from interp.runs import Run, read_parts
from interp.sweep import Engine

TOLERANCE = 0.25
SHARES = [0.125, 0.25, 0.5, 1.0]


class Planted(Engine):
    """Says what damage says instead of running a model; counts what it ran."""

    def __init__(self, damage: np.ndarray, clusters: np.ndarray) -> None:
        model = family("tiny_gpt2")
        task = prompt_task(model, [("the key", "x", "y")] * damage.shape[1])
        task.table["cluster"] = clusters
        heads = all_heads(model.sites)
        settings = [(heads[number % len(heads)],) for number in range(len(damage))]
        super().__init__(model, task, settings, Zero(), "all")
        self.damage, self.jobs = damage, []

    def run(self, job) -> pd.DataFrame:
        self.jobs.append(job)
        setting = np.repeat(job.settings, len(job.examples))
        example = np.tile(job.examples, len(job.settings))
        found = pd.DataFrame({"setting": setting, "example": example, "draw": 0, "clean": 5.0})
        return found.assign(ablated=5.0 - self.damage[setting, example])


def swept(folder, engine, shares=SHARES, numbers=None):
    run = Run(folder, {}, {})
    if not run.is_started:
        run.start({}, {})
    told = []
    parts = sweep.run_rounds(
        run,
        engine,
        range(len(engine.damage)) if numbers is None else numbers,
        looks=sweep.looks(engine.damage.shape[1], shares, 0.95),
        tokens_per_batch=2000,
        tolerance=TOLERANCE,
        seed=0,
        advance=told.append,
    )
    return read_parts(parts), sum(told)


def classes(rows, engine):
    """Class every setting as a summary does, from what was measured of it."""
    damage = np.full(engine.damage.shape, np.nan)
    damage[rows["setting"], rows["example"]] = rows["clean"] - rows["ablated"]
    n = (~np.isnan(damage)).sum(1)
    levels = {look.n: look.level for look in sweep.looks(damage.shape[1], SHARES, 0.95)}
    clusters = engine.task.table["cluster"].to_numpy()
    level = np.array([levels[k] for k in n])
    interval = statistics.cluster_t(damage, clusters, level=level)
    return statistics.classify(interval.low, interval.high, TOLERANCE), n


@pytest.fixture
def planted():
    """Six heads: two clear, two that take more examples, one on the bound, one harmful."""
    rng = np.random.default_rng(0)
    means = np.array([3.0, 0.0, 0.9, 0.0, TOLERANCE, -3.0])
    spreads = np.array([0.3, 0.02, 0.8, 0.4, 0.5, 0.3])
    damage = means[:, None] + spreads[:, None] * rng.normal(size=(6, 160))
    return Planted(damage, np.arange(160) % 40)


def test_a_head_stops_once_its_class_is_decided(planted, tmp_path):
    rows, told = swept(tmp_path, planted)
    found, n = classes(rows, planted)
    assert found.tolist() == [
        "needed",
        "negligible",
        "needed",
        "negligible",
        "undecided",
        "harmful",
    ]
    assert n.tolist()[:2] == [20, 20]
    assert 20 < n[2] < 160
    assert 20 < n[3] < 160
    assert n[4] == 160
    assert n[5] == 20
    assert len(rows) == n.sum() == sum(job.n_rows for job in planted.jobs)
    assert not rows.duplicated(["setting", "example"]).any()
    assert told == 6 * 160  # the progress bar ends at its end


def test_the_looks_come_at_the_shares_and_a_share_must_grow():
    looks = sweep.looks(100, SHARES, 0.95)
    assert [look.n for look in looks] == [13, 25, 50, 100]
    assert [look.level for look in looks] == statistics.look_levels([0.13, 0.25, 0.5, 1.0], 0.95)
    assert [look.n for look in sweep.looks(2, SHARES, 0.95)] == [1, 2]


def test_examples_come_in_random_order_and_not_in_the_files(planted, tmp_path):
    planted.damage[1, :80] = 3.0  # the first half of the file is another population
    rows, _ = swept(tmp_path, planted)
    first = rows[rows["setting"] == 1]["example"]
    assert len(first) > 20
    assert 4 < (first[:20] < 80).sum() < 16


def test_a_second_time_nothing_is_run_and_the_rows_are_the_same(planted, tmp_path):
    rows, _ = swept(tmp_path, planted)
    n_jobs = len(planted.jobs)
    again, told = swept(tmp_path, planted)
    assert len(planted.jobs) == n_jobs
    assert told == 6 * 160
    pd.testing.assert_frame_equal(rows, again)


def test_a_setting_stops_where_it_would_stop_alone(planted, tmp_path):
    rows, _ = swept(tmp_path / "all", planted)
    for number in range(6):
        alone, _ = swept(tmp_path / str(number), planted, numbers=[number])
        mine = rows[rows["setting"] == number]
        assert set(alone["example"]) == set(mine["example"])


def test_one_look_is_a_full_sweep(planted, tmp_path):
    rows, _ = swept(tmp_path, planted, shares=[1.0])
    assert len(rows) == 6 * 160


def test_an_adaptive_summary_says_what_the_rounds_decided(planted, tmp_path):
    rows, _ = swept(tmp_path, planted)
    found, n = classes(rows, planted)
    table = results.effects(
        rows,
        pd.DataFrame({"site": "attn", "layer": [0] * 4 + [1] * 2, "head": [0, 1, 2, 3, 0, 1]}),
        pd.DataFrame({"example": range(160), "cluster": np.arange(160) % 40}),
        higher_is_better=True,
        model="m",
    )
    looks = {look.n: look.level for look in sweep.looks(160, SHARES, 0.95)}
    summary = results.summary(
        table, n_draws=50, level=0.95, seed=0, tolerance=TOLERANCE, looks=looks
    )
    assert summary["class"].tolist() == found.tolist()
    assert summary["n"].tolist() == n.tolist()


def test_where_there_is_nothing_few_heads_are_called_needed_or_harmful(tmp_path):
    # 200 times 12 heads; what a head does is the same in a cluster, and symmetric about 0
    rng = np.random.default_rng(4)
    shared = rng.exponential(size=(2400, 32)) * rng.choice([-1.0, 1.0], size=(2400, 32))
    damage = np.repeat(shared, 4, axis=1) + 0.2 * rng.normal(size=(2400, 128))
    engine = Planted(20 * TOLERANCE * damage, np.repeat(np.arange(32), 4))
    rows, _ = swept(tmp_path, engine)
    found, n = classes(rows, engine)
    assert len(set(n)) > 1  # some stopped early
    assert 0 < np.isin(found, ["needed", "harmful"]).mean() <= 0.05
