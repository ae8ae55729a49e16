"""experiments.roles and experiments.validate, run as a user runs them."""

import json
from pathlib import Path

import pandas as pd
import pytest
from test_experiments import files, run, write

from experiments import roles
from interp import results
from interp.heads import Head
from interp.patterns import observe

pytestmark = pytest.mark.usefixtures("elsewhere")
SMALL = ["n_examples=40", "n_chunks=6", "n_repeats=10", "model.truncation=right"]
"""(The first 50 sentences are those annotated by hand.)"""
SCORES = (
    "model corpus site layer head role feature score baseline baseline_name gating n ci_low "
    "ci_high split n_clusters margin margin_low margin_high p_value"
)
ROLES = (
    "model corpus site layer head role feature score baseline baseline_name margin margin_low "
    "margin_high q_value n note"
)
SENTENCE = "The student delivered the book to the library yesterday."


@pytest.fixture
def two_interrupts(monkeypatch):
    """Let the second and the fifth batch fail, once each."""
    honest, calls = observe.observe, []

    def failing(*args):
        calls.append(args)
        if len(calls) in (2, 5):
            raise RuntimeError("pulled the plug")
        return honest(*args)

    monkeypatch.setattr(observe, "observe", failing)


def test_writes_the_tables_of_the_contract(capsys):
    assert run("roles", "model=tiny_bert", *SMALL) == 0
    [record] = Path("results").rglob("run.json")
    assert record.parent.parent == Path("results/roles/tiny_bert")
    scores, found = results.load("results", "scores"), results.load("results", "roles")
    extra = ("run", "seed", "n_examples", "dtype")
    assert [name for name in scores if name not in extra] == SCORES.split()
    assert [name for name in found if name not in extra] == ROLES.split()
    key = ["site", "layer", "head", "role", "feature", "split", "baseline_name"]
    assert not scores.duplicated(key).any()
    assert (scores.groupby(["feature", "split"])[["layer", "head"]].nunique() == [3, 4]).all(
        axis=None
    )
    assert set(scores["role"]) == {
        *("positional", "token", "syntactic", "pronoun", "semantic", "description")
    }
    margin = scores["score"] - scores["baseline"]
    assert margin.to_numpy() == pytest.approx(scores["margin"].to_numpy(), abs=1e-6, nan_ok=True)
    facts = json.loads(record.read_text())
    assert facts["done"]
    assert facts["n_passages"] == len(results.load("results", "passages"))
    assert {document["licence"] for document in facts["documents"].values()} == {"Apache-2.0"}
    made = {path.name for path in record.parent.iterdir()}
    assert made >= {"roles.png", "features.png", "observations.parquet"}
    assert "heads described as uniform" in capsys.readouterr().out


def test_scores_follow_from_the_observations():
    run("roles", "model=tiny_llama", *SMALL)
    seen, scores = results.load("results", "observations"), results.load("results", "scores")
    for feature in ("offset:-1", "obj:dep->head", "first_token", "induction"):
        part = seen[
            (seen["feature"] == feature) & (seen["subset"] == "all") & (seen["split"] == "report")
        ]
        mean = (part["L1H2"] * part["n"]).sum() / part["n"].sum()
        line = scores[
            (scores["feature"] == feature)
            & (scores["split"] == "report")
            & (scores["layer"] == 1)
            & (scores["head"] == 2)
            & ~scores["baseline_name"].isin(["mass", "pos_wrong"])
        ]
        assert line["score"].unique() == pytest.approx([mean], abs=1e-6)
        assert line["n"].unique() == [part["n"].sum()]


def test_goes_on_where_it_stopped_and_is_not_repeated(two_interrupts, monkeypatch):
    command = ("roles", "model=tiny_gpt2", *SMALL)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="pulled the plug"):
            run(*command, "hydra.run.dir=stopped")
    assert run(*command, "hydra.run.dir=stopped") == 0
    assert run(*command, "hydra.run.dir=quiet") == 0
    for table in ("observations", "scores", "roles"):
        stopped, quiet = (
            pd.read_parquet(f"{folder}/{table}.parquet") for folder in ("stopped", "quiet")
        )
        pd.testing.assert_frame_equal(stopped, quiet)
    monkeypatch.setattr(observe, "observe", None)  # whoever calls it now fails
    assert run(*command, "hydra.run.dir=quiet", "top=1") == 0


def test_a_sentence_is_asked_who_what_where_and_when(capsys):
    assert run("roles", "model=tiny_bert", *SMALL, f"sentence='{SENTENCE}'") == 0
    out = capsys.readouterr().out
    [table] = map(pd.read_parquet, Path("results").rglob("sentence-*.parquet"))
    asked = table.drop_duplicates(["question", "about", "answer"])
    assert set(zip(asked["question"], asked["about"], asked["answer"], strict=True)) == {
        ("who", "delivered", "student"),
        ("what", "delivered", "book"),
        ("where", "delivered", "library"),
        ("when", "delivered", "yesterday"),
    }
    assert len(table) == 4 * 12
    assert table["attention"].between(0, 1).all()
    assert "delivered" in out
    assert len(list(Path("results").rglob("run.json"))) == 1


def test_a_sentence_may_hold_what_means_something_to_hydra():
    text = 'Yes, "the dog\'s" bone: {a} = $5.'
    assert run("roles", "model=tiny_bert", *SMALL, f"sentence={text}", "top=1") == 0
    [table] = map(pd.read_parquet, Path("results").rglob("sentence-*.parquet"))
    assert set(table["sentence"]) == {text}


def test_a_causal_model_is_asked_from_right_to_left():
    assert run("roles", "model=tiny_llama", *SMALL, f"sentence='{SENTENCE}'") == 0
    [table] = map(pd.read_parquet, Path("results").rglob("sentence-*.parquet"))
    pairs = table.drop_duplicates("question").set_index("question")[["word", "looks_at"]]
    assert tuple(pairs.loc["who"]) == ("delivered", "student")
    assert tuple(pairs.loc["what"]) == ("book", "delivered")


def test_a_sentence_without_annotation_is_asked_where_its_words_look():
    assert run("roles", "model=tiny_bert", *SMALL, "sentence='Zebras doze.'", "top=1") == 0
    [table] = map(pd.read_parquet, Path("results").rglob("sentence-*.parquet"))
    assert set(table["question"]) == {"looks at"}
    assert set(table["word"]) == {"Zebras", "doze", "."}


def test_says_what_it_cannot_judge_and_what_its_halves_are(capsys):
    write("my.txt", "The cats sleep. Dogs bark at them. Nobody minds the noise.\n")
    text = ["corpus=text", "corpus.path=my.txt", "corpus.pipeline=null"]
    assert run("roles", "model=tiny_bert", *text, "n_chunks=6", "n_repeats=10") == 0
    out = capsys.readouterr().out
    assert "fewer than 10 documents: the halves and the intervals are over passages" in out
    assert "too little text to judge (a half needs 20 queries and 5 clusters): offset:+1" in out
    assert run("roles", "model=tiny_bert", *text, "n_chunks=6", "n_repeats=10", "ablate=true") == 2
    assert "ablate=true needs a decoder" in capsys.readouterr().err


def test_a_decoder_reads_a_bos_unless_told_otherwise():
    run("roles", "model=tiny_llama", *SMALL, "n_examples=4")
    run("roles", "model=tiny_llama", "model.prepend_bos=false", *SMALL, "n_examples=4")
    facts = [json.loads(path.read_text()) for path in sorted(Path("results").rglob("run.json"))]
    assert {record["model"]["prepend_bos"] for record in facts} == {True, False}


def test_an_encoder_decoder_is_measured_at_every_site():
    assert run("roles", "model=tiny_bart", *SMALL) == 0
    scores = results.load("results", "scores")
    sites = scores.groupby("site")["role"].agg(set)
    assert "syntactic" in sites["encoder_attn"]
    assert "syntactic" in sites["decoder_self_attn"]
    assert sites["decoder_cross_attn"] == {"alignment", "description"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["corpus=conllu", "corpus.path=nowhere"], "nowhere"),
        (["corpus=conllu"], "corpus.path is missing"),
        (["corpus=gap", "corpus.path=bad.tsv"], "bad.tsv"),
        (["n_examples=0"], "n_examples=0: at least 1"),
        (["sentence='   '", *SMALL], "sentence is empty"),
        (["relation=[obj]"], "there is no key 'relation' in the configuration; did you mean"),
        (["thresholds.fdr=often"], "thresholds.fdr=often"),
        (["corpus=builtn"], "builtn"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(overrides, message, capsys):
    write("bad.tsv", "ID\tText\n1\thello\n")
    before = files()
    assert run("roles", "model=tiny_bert", *overrides) != 0
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error
    if "sentence" not in str(overrides):
        assert files() == before


def test_random_sets_match_the_layers_and_leave_out_what_they_must():
    every = [Head("attn", layer, head) for layer in range(3) for head in range(6)]
    chosen = [Head("attn", 1, 0), Head("attn", 1, 1), Head("attn", 2, 5)]
    excluded = {*chosen, Head("attn", 2, 4)}
    drawn = roles.random_sets(chosen, every, excluded, 20, seed=0)
    for heads in drawn:
        assert [head.layer for head in heads] == [1, 1, 2]
        assert not excluded & set(heads)
        assert len(set(heads)) == 3
    assert len({tuple(heads) for heads in drawn}) > 10
    assert drawn == roles.random_sets(chosen, every, excluded, 20, seed=0)
    with pytest.raises(ValueError, match=r"layer 1 has 2 of the heads .* and 1 to compare"):
        roles.random_sets(chosen, every, {*every[6:11]}, 1, seed=0)


def test_heads_with_a_role_are_taken_out_beside_random_heads(capsys):
    planted = ["model=planted", *SMALL, "n_repeats=40"]
    with_few = ["ablate_with.n_examples=8", "ablate_with.n_random=3", "ablate_with.n_heads=1"]
    assert run("roles", *planted, "ablate=true", *with_few, "tokens_per_batch=256") == 0
    damage = results.load("results/roles/planted", "damage")
    ours = damage[damage["feature"] == "induction"]
    assert list(ours["set"]) == ["random 0", "random 1", "random 2", "role", "role - random"]
    found = results.load("results/roles/planted", "roles")
    [best] = found[found["feature"] == "induction"].itertuples()
    assert set(ours[ours["set"] == "role"]["heads"]) == {f"L{best.layer}H{best.head}"}
    others = ours[ours["set"].str.startswith("random")]["damage"]
    values = ours.set_index("set")["damage"]
    assert values["role - random"] == pytest.approx(values["role"] - others.mean(), abs=1e-6)


def test_validation_finds_what_is_planted_and_nothing_else(capsys):
    assert run("validate", "variants=[encoder_decoder]", "n_seeds=1", "random=[]") == 0
    table = results.load("results/validate", "validation")
    extra = ("run", "seed", "n_examples", "dtype")
    columns = ["variant", "role", "feature", "site", "layer", "head", "truth", "found"]
    assert [name for name in table if name not in extra] == columns
    assert table[table["truth"] == "planted"]["found"].all()
    assert not table[table["truth"] == "absent"]["found"].any()
    assert (table["truth"] == "planted").sum() == 24
    assert "planted features found; 0 of" in capsys.readouterr().out


def test_random_weights_have_no_roles_and_are_uniform(model):
    model("minilm")
    run("validate", "variants=[]", "random=[minilm]", "n_examples=80", "n_chunks=40")
    table = results.load("results/validate", "validation")
    assert not table[table["feature"] != "uniform"]["found"].any()
    assert table[table["feature"] == "uniform"]["found"].all()


def test_without_its_induction_heads_smollm2_cannot_repeat(model):
    from interp import gates, sweep
    from interp.tasks import repeated_tokens

    loaded = model("smollm2")
    task = repeated_tokens.task(loaded, n=6, seed=0)
    found = [Head("attn", *place) for place in ((18, 6), (17, 4), (17, 5), (12, 6), (15, 2))]
    others = [Head("attn", *place) for place in ((18, 0), (17, 0), (17, 8), (12, 1), (15, 0))]
    engine = sweep.Engine(loaded, task, [tuple(found), tuple(others)], gates.Zero(), "all")
    jobs = [job for part in engine.plan(512, range(2)).parts for job in part]
    rows = pd.concat(map(engine.run, jobs))
    damage = (rows["ablated"] - rows["clean"]).groupby(rows["setting"]).mean()
    assert damage[0] > 1
    assert damage[0] > 3 * damage[1]
