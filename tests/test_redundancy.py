"""experiments.redundancy, run as a user runs it."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_experiments import files, run, write

from experiments import redundancy
from interp import results
from interp.redundancy import similarity

pytestmark = pytest.mark.usefixtures("elsewhere")
SMALL = [
    *("corpus.n_sentences=20", "n_positions=80", "null_draws=2", "resamples=3"),
    *("max_clusters=4", "model.truncation=right"),
]
EXTRA = ("run", "seed", "n_examples", "dtype")
COLUMNS = {
    "similarity": "model corpus site layer head site_2 layer_2 head_2 measure value null_name "
    "null_mean null_p95",
    "twins": "model corpus site layer head measure twin site_2 layer_2 head_2 value n is_mutual "
    "null_name null_mean null_p95",
    "agreement": "model corpus site measure measure_2 other spearman null_mean null_p95 n",
    "clusters": "site layer head cluster stability",
    "cluster_choice": "model corpus site measure n_clusters silhouette agreement chosen",
    "shared_space": "model corpus site layer matrix fraction directions energy random_mean "
    "random_p95",
}
MEASURES = {
    *("js", "tv", "js_without_first", "tv_without_first", "pattern_cosine"),
    *("pattern_correlation", "cka", "output_cosine", "ov_overlap", "qk_overlap"),
}
WEIGHTS = {"ov_overlap", "qk_overlap"}


@pytest.fixture
def no_figures(monkeypatch):
    """Figures take longest, and are looked at elsewhere."""
    monkeypatch.setattr(redundancy, "draw", lambda run, cfg: [])


@pytest.fixture
def two_interrupts(monkeypatch):
    """Let the second and the fourth measurement fail, once each."""
    honest, calls = similarity.measured, []

    def failing(*args):
        calls.append(args)
        if len(calls) in (2, 4):
            raise RuntimeError("pulled the plug")
        return honest(*args)

    monkeypatch.setattr(similarity, "measured", failing)


def test_writes_the_tables_of_the_contract(capsys):
    assert run("redundancy", "model=tiny_llama", *SMALL) == 0
    [record] = Path("results").rglob("run.json")
    assert record.parent.parent == Path("results/redundancy/tiny_llama")
    for name, columns in COLUMNS.items():
        assert list(pd.read_parquet(record.parent / f"{name}.parquet")) == columns.split(), name
    table = results.load("results", "similarity")
    key = ["site", "layer", "head", "site_2", "layer_2", "head_2", "measure", "null_name"]
    assert not table.duplicated(key).any()
    counts = table.groupby(["measure", "null_name"]).size()
    assert (counts == 66).all()
    assert set(counts.index) == {
        *((name, "permuted") for name in MEASURES),
        *((name, "other_half") for name in MEASURES - WEIGHTS),
    }
    assert (table["value"].between(-1, 1)).all()
    twins = results.load("results", "twins")
    assert set(twins[~twins["measure"].isin(WEIGHTS)]["n"]) <= set(range(1, 81))
    groups, choice = (results.load("results", name) for name in ("clusters", "cluster_choice"))
    assert len(groups) == 12
    assert groups["stability"].between(0, 1).all()
    assert choice["chosen"].sum() == 1
    assert choice["silhouette"].idxmax() == choice["chosen"].idxmax()
    assert json.loads(record.read_text())["done"]
    made = {path.name for path in record.parent.iterdir()}
    assert made >= {"clusters.png", "plane.png", "cluster_choice.png"}
    out = capsys.readouterr().out
    assert "12 heads, 66 pairs, 80 positions" in out
    assert "more alike by js than all but 5% are by chance: pairs" in out
    assert "adjusted Rand index" in out


def test_values_are_those_of_the_library_and_a_run_of_roles_colours_the_map(capsys):
    from hydra import compose, initialize_config_dir

    from experiments.command import CONF
    from experiments.inputs import loaded
    from experiments.redundancy import look, sample

    assert run("redundancy", "model=tiny_bert", *SMALL, "hydra.run.dir=here") == 0
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("redundancy", ["model=tiny_bert", *SMALL])
    model = loaded(cfg)
    _, halves = sample(cfg, model)
    documents = [{example.cluster for example in half} for half in halves.values()]
    assert not documents[0] & documents[1]
    table = pd.read_parquet("here/similarity.parquet")
    table = table[(table["null_name"] == "other_half") & (table["measure"] == "js")]
    [line] = table.query("layer == 0 and head == 3 and layer_2 == 2 and head_2 == 1").itertuples()
    for half, value in (("select", line.value), ("report", line.null_mean)):
        seen = look(model, halves[half], cfg.n_positions)["attn"]
        js = similarity.measured(seen, ["js"])["js"].value
        assert value == pytest.approx(js[3, 9], abs=1e-6)
    before = files()
    Path("roles").mkdir()
    found = {"site": "attn", "layer": [0, 1, 1], "head": [1, 2, 2], "score": [0.9, 0.8, 0.9]}
    kinds = {
        "role": ["positional", "syntactic", "positional"],
        "feature": ["offset:-1", "det:dep->head", "offset:+1"],
    }
    pd.DataFrame(found | kinds).to_parquet("roles/roles.parquet")
    write("roles/run.json", json.dumps({"done": True, "config": {}, "inputs": {}}))
    again = ("redundancy", "model=tiny_bert", *SMALL, "hydra.run.dir=here")
    assert run(*again, "roles=roles") == 0
    [added] = set(files()) - {*before, "roles/roles.parquet", "roles/run.json"}
    assert Path(added).name.startswith("plane_by_role-")
    capsys.readouterr()
    assert run(*again, "seed=1") == 2
    assert "seed (0 there, 1 here)" in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures")
def test_goes_on_where_it_stopped_and_is_not_repeated(two_interrupts, monkeypatch, capsys):
    # (clusters by weights need no resampled documents, and are not said to be stable)
    command = ("redundancy", "model=tiny_gpt2", *SMALL, "cluster_by=qk_overlap")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="pulled the plug"):
            run(*command, "hydra.run.dir=stopped")
    done = {path: path.stat().st_mtime_ns for path in Path("stopped/parts").glob("*.parquet")}
    assert len(done) == 2
    assert run(*command, "hydra.run.dir=stopped") == 0
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert run(*command, "hydra.run.dir=quiet") == 0
    for table in COLUMNS:
        stopped, quiet = (
            pd.read_parquet(f"{folder}/{table}.parquet") for folder in ("stopped", "quiet")
        )
        pd.testing.assert_frame_equal(stopped, quiet)
    assert pd.read_parquet("quiet/clusters.parquet")["stability"].isna().all()
    assert "resampled" not in capsys.readouterr().out
    monkeypatch.setattr(similarity, "measured", None)  # whoever calls it now fails
    before = {path: path.stat().st_mtime_ns for path in Path("quiet").rglob("*")}
    assert run(*command, "hydra.run.dir=quiet", "top=1") == 0
    assert {path: path.stat().st_mtime_ns for path in Path("quiet").rglob("*")} == before


@pytest.mark.usefixtures("no_figures")
def test_planted_twins_are_found_from_the_command_line():
    from interp.models.planted import planted

    options = ["model=planted", "model.variant=redundant", "cluster_by=output_cosine"]
    assert run("redundancy", *options, *SMALL[2:4], "n_positions=400") == 0
    choices = {"device": "cpu", "dtype": "float32", "prepend_bos": "auto", "truncation": "error"}
    one = planted("redundant", 0, padding_side="right", **choices)
    twins = results.load("results", "twins")
    twins = twins[twins["null_name"] == "permuted"].set_index(["measure", "layer", "head"])
    first, second = one.heads_of("twin")
    for measure in ("output_cosine", "ov_overlap"):
        line = twins.loc[(measure, first.layer, first.head)]
        assert line["twin"] == str(second)
        assert line["is_mutual"]
    assert set(results.load("results", "similarity")["corpus"]) == {"planted, seed 0"}
    clusters = results.load("results", "clusters").set_index(["layer", "head"])["cluster"]
    assert clusters.loc[(first.layer, first.head)] == clusters.loc[(second.layer, second.head)]
    dead = [head for head, known in one.truth.items() if known == {"dead": "planted"}]
    assert not [head for head in dead if (head.layer, head.head) in clusters.index]


def test_an_encoder_decoder_is_compared_within_each_site_and_clustered_by_any_measure():
    assert run("redundancy", "model=tiny_bart", *SMALL, "cluster_by=cka") == 0
    table = results.load("results", "similarity")
    assert (table["site"] == table["site_2"]).all()
    assert table["site"].nunique() == 3
    groups = results.load("results", "clusters")
    assert (groups.groupby("site").size() == 12).all()
    assert groups["stability"].notna().all()
    folder = next(Path("results").rglob("run.json")).parent
    assert (folder / "clusters-decoder_cross_attn.png").exists()
    assert set(results.load("results", "cluster_choice")["measure"]) == {"cka"}


def checkpoint(n_heads):
    from interp.transformer import Transformer, TransformerConfig, save

    config = TransformerConfig(
        "decoder", d_vocab=260, d_model=16, n_layers=1, n_heads=n_heads, n_ctx=128
    )
    save(Transformer(config), f"heads{n_heads}")
    return ["model=custom", f"model.path=heads{n_heads}"]


@pytest.mark.usefixtures("no_figures")
def test_two_heads_are_compared_and_not_clustered(capsys):
    assert run("redundancy", *checkpoint(2), *SMALL) == 0
    assert set(results.load("results", "similarity").groupby("measure").size()) == {1, 2}
    assert (results.load("results", "twins")["is_mutual"]).all()
    assert results.load("results", "clusters").empty
    assert "2 heads, 1 pairs" in capsys.readouterr().out
    assert run("redundancy", *checkpoint(1), *SMALL) == 2
    assert "has one head: nothing to compare it with" in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures")
def test_random_weights_are_the_null_of_a_bundled_model(model):
    model("minilm")
    assert run("redundancy", "model=minilm", *SMALL) == 0
    table = results.load("results", "similarity")
    null = table[table["null_name"] == "random_weights"]
    assert set(null["measure"]) == MEASURES
    apart = (null["layer_2"] - null["layer"]).abs()
    per_distance = null.groupby(["measure", apart])["null_mean"].nunique()
    assert (per_distance == 1).all()
    js = null[null["measure"] == "js"]
    assert js["null_mean"].max() < js["value"].median()  # all look about evenly, hence alike
    share = null[null["measure"] == "ov_overlap"]["null_mean"]
    assert share.to_numpy() == pytest.approx(32 / 384, rel=0.05)
    cka = table[(table["measure"] == "cka") & (table["null_name"] == "permuted")]
    assert np.mean(cka["value"] > cka["null_mean"]) > 0.8


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster_by=colour"], "cluster_by=colour: one of js"),
        (["n_positions=1"], "n_positions=1: at least 10"),
        (["null_draws=1"], "null_draws=1: at least 2"),
        (["max_clusters=1"], "max_clusters=1: at least 2"),
        (["fractions=[0,0.5]"], "fractions=[0, 0.5]: shares"),
        (["fractions=0.5"], "fractions=0.5: shares"),
        (["roles=nowhere"], "nowhere: no finished run"),
        (["n_examples=1"], "at least 2 are needed"),
        (["corpus=conllu"], "corpus.path is missing"),
        (["cluster=js"], "there is no key 'cluster' in the configuration"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(overrides, message, capsys):
    before = files()
    assert run("redundancy", "model=tiny_bert", *overrides) == 2
    [error] = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert files() == before
