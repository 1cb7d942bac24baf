"""`operant report`: one page that loads nothing, in which nothing that a file says becomes markup."""

import base64
import json
import re
from html.parser import HTMLParser

import pytest

from operant.cli import main
from operant.errors import SpecError, UsageError
from operant.execution.report import ReportConfig, report
from operant.tracking import EpisodeRecord, History
from operant.tracking.metrics import read_metrics

EVIL = "<script>alert(1)</script>&\"'$x$y_{"
VOID = {"meta", "img"}


class Outline(HTMLParser):
    """Collects the tags, the attributes that name something to load, and the text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.loads, self.words, self.open = set(), [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attributes), attributes
        self.loads += [value for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def made(folder, scale=1.0, *, agent="ppo", env="CartPole-v1", seed=1, **settings):
    """Write a run of 40 episodes that ends at return `scale` * 40, with evaluations and metrics."""
    folder.mkdir(parents=True)
    data = {
        "agent": {"type": agent, "lr": 0.0007, **settings},
        "run": {"env": env, "n_envs": 4, "seed": seed, "max_steps": 400},
        "command": f"operant train {agent} --seed {seed}",
        "begun": "2026-01-01T00:00:00+00:00",
        "versions": {"operant": "0.1.0", "jax": f"1.{seed}"},
        "machine": {"device": "cpu"},
        "git": None,
    }
    (folder / "run.json").write_text(json.dumps(data))
    for name, every in (("history.parquet", 1), ("evaluations.parquet", 20)):
        rows = [
            EpisodeRecord(10 * i, float(i), scale * i, 10, 0, scale * i, scale * i)
            for i in range(every, 41, every)
        ]
        history = History(folder / name)
        history.episodes(rows)
        history.close()
    lines = [{"step": 10 * i, "time": 1.0 * i, "loss/policy": -0.5 * i, "mine/<b>": None} for i in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "{half")
    return folder


def test_a_page_of_runs_shows_their_results_and_how_to_repeat_them(tmp_path):
    runs = [made(tmp_path / "runs" / f"s{seed}", seed, seed=seed) for seed in (1, 2)]
    runs.append(made(tmp_path / "runs" / "other", 1.5, seed=3, lr=0.012345678))
    out = report([tmp_path / "runs"], ReportConfig(out=str(tmp_path / "a" / "r.html"), video=False))
    page = Outline(out.read_text())
    for words in (
        "ppo, lr 0.0123 and ppo, lr 0.0007 on CartPole-v1",
        "3 runs",
        "ppo, lr 0.0123 1 0 60.00 60.00",  # label, seeds, steps of its newest checkpoint, two means
        "ppo, lr 0.0007 2 0 60.00 [40.00, 80.00] 60.00 [40.00, 80.00]",
        "n_envs 1 4 4",
        "lr 0.0007 0.0123457 0.0007",
        "operant train ppo --seed 2",
        f"operant reproduce {runs[0]}",
        "jax 1.3, 1.1, 1.2",
        "Policy loss",
    ):
        assert words in page.text, words
    assert "mine/<b>" not in page.text  # it never had a value
    assert out.read_text().count("<svg ") == 3  # mean return, evaluations, a loss
    assert all(load.startswith("#") for load in page.loads)
    again = report(runs[::-1], ReportConfig(out=str(tmp_path / "again.html"), video=False))
    assert again.stat().st_size == pytest.approx(out.stat().st_size, rel=0.01)


def test_what_files_say_stays_text(tmp_path):
    run = made(tmp_path / "<b onclick='x'>", agent="a:<i>", env=EVIL, note=EVIL)
    data = json.loads((run / "run.json").read_text())
    data |= {"command": EVIL, "begun": EVIL, "versions": {EVIL: EVIL}, "git": {"branch": EVIL}}
    (run / "run.json").write_text(json.dumps(data))
    page = report([run], ReportConfig(out=str(tmp_path / "r.html"))).read_text()
    outline = Outline(page)
    assert outline.text.count(EVIL) >= 7
    assert not outline.tags & {"script", "i", "b", "link", "iframe", "img", "object"}, outline.tags
    assert not re.findall(r"url\((?!#)", page) and "@import" not in page
    assert "There is no video: " in outline.text


def test_a_run_that_has_just_begun_is_reported(tmp_path):
    run = made(tmp_path / "run")
    for name in ("history.parquet", "evaluations.parquet"):
        for part in (run / name).iterdir():
            part.unlink()
        (run / name).rmdir()
    (run / "metrics.jsonl").unlink()
    History(run / "history.parquet").close()
    page = Outline(report([run], ReportConfig(out=str(tmp_path / "r.html"), video=False)).read_text())
    assert "No episode has ended yet." in page.text
    assert read_metrics(run / "metrics.jsonl") == {}


@pytest.mark.slow
def test_a_video_of_the_final_policy_is_a_part_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train = ["train", "random", "--env", "CartPole-v1", "--max-steps", "60", "--seed", "1", "--quiet"]
    assert main([*train, "--run-dir", "run"]) == 0
    assert main(["report", "run", "--video-steps", "30"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Wrote report.html"
    page = Outline((tmp_path / "report.html").read_text())
    (video,) = (load for load in page.loads if load.startswith("data:video/mp4;base64,"))
    assert base64.b64decode(video.partition(",")[2])[4:8] == b"ftyp"
    assert "An episode of run, without exploration: " in page.text


def test_a_study_is_reported_with_its_best_settings(tmp_path, monkeypatch, capsys):
    optuna = pytest.importorskip("optuna", reason="studies are an extra")
    from operant.tuning import study as studies

    monkeypatch.chdir(tmp_path)
    study = studies.create("s", studies.place("s", None), {"agent": "ppo", "env": EVIL, "trial_steps": 10})
    ranges = {"lr": optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True)}
    for i, value in enumerate((1.0, 3.0, 2.0)):
        attributes = {"options": {"lr": 0.001 * (i + 1), "model": EVIL}, "run": {"env": EVIL}}
        study.add_trial(
            optuna.trial.create_trial(
                params={"lr": 0.001 * (i + 1)}, distributions=ranges, value=value, user_attrs=attributes
            )
        )
    assert main(["report", "--study", "s", "--out", "s.html"]) == 0
    text = (tmp_path / "s.html").read_text()
    page = Outline(text)
    for words in (
        f"Study s: ppo on {EVIL}",
        "3 trials of 10 environment steps: 3 complete.",
        "Trial 1, mean return 3.00.",
        "operant train --from-study s",
        "1 complete 3.00 0.002 2 complete 2.00 0.003 0 complete 1.00 0.001",
    ):
        assert words in page.text, words
    assert text.count("<svg ") == 3 and "script" not in page.tags


def test_what_cannot_be_reported_is_refused(tmp_path):
    made(tmp_path / "run")
    with pytest.raises(UsageError, match=r"report needs runs, .* or a study"):
        report([])
    with pytest.raises(UsageError, match=r"report needs runs"):
        report([tmp_path / "run"], ReportConfig(study="s"))
    with pytest.raises(SpecError, match=r"report needs folders of runs.*history.parquet"):
        report([tmp_path / "run" / "history.parquet"])
    with pytest.raises(SpecError, match=r"out must be a file that ends with .html. Received: out='a.png'"):
        ReportConfig(out="a.png")
    with pytest.raises(SpecError, match="storage is for --study NAME"):
        ReportConfig(storage="x.db")
