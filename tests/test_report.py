"""``tokenswift report``: the page says what the files say, whatever they say, and nothing gets out of it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_samples import make_run
from test_hostile_run import change_raw_manifests, forge, forge_meta, forge_settings

from tokenswift_cli import cli

ONE = (
    "speed", "timeline", "length", "split", "drafters", "depths", "repetitiveness", "memory",
    "map-4", "map-8",
)  # fmt: skip
ALL = ("speed", "timeline", "length", "acceptance", "distinct-2", "distinct-4", "novelty", "memory")
OWN = ("drafters", "depths", "repetitiveness", "split", "map-4", "map-8")
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[2J\u202e&amp;"


class Seen(HTMLParser):
    """What a browser would see: balanced tags, ids, text by element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] or "" for _, attributes in self.tags if "id" in attributes]

    @property
    def figures(self) -> list[str]:
        return [attributes["id"] or "" for tag, attributes in self.tags if tag == "figure"]


def report(*words: str | Path) -> int:
    return cli.run(["report", *map(str, words)])


def page_of(run_dir: Path, *words: str | Path) -> str:
    assert report(run_dir, *words) == 0
    return (run_dir / "report.html").read_text(encoding="utf-8")


def cards(page: str) -> dict[str, tuple[str, str]]:
    found = re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)(?:<small>([^<]*)</small>)?</dd>", page)
    return {name: (value, remark) for name, value, remark in found}


def assert_closed(page: str) -> Seen:
    """No script, nothing from elsewhere, each id once and each reference with its target."""
    seen = Seen(page)
    assert not {tag for tag, _ in seen.tags} & {
        "script", "img", "image", "iframe", "object", "embed", "link", "base", "form", "a", "foreignobject"
    }  # fmt: skip
    assert "default-src 'none'" in page
    assert len(seen.ids) == len(set(seen.ids))
    for _, attributes in seen.tags:
        for name, value in attributes.items():
            assert not name.startswith("on") and name not in ("src", "srcset", "action", "data")
            if name in ("href", "xlink:href"):
                assert value and value[0] == "#" and value[1:] in seen.ids
            for target in re.findall(r"url\(([^)]*)\)", value or ""):
                assert target[0] == "#" and target[1:] in seen.ids
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style and "@import" not in style
    return seen


def test_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make_run(tmp_path / "novel", 14, resume_at=6)
    page = page_of(run_dir)
    assert capsys.readouterr().out == f"{run_dir / 'report.html'}\n"
    seen = assert_closed(page)
    assert seen.figures == [f"run-0-{key}" for key in ONE]
    found = cards(page)
    assert found["tokens"] == ("700", "of 1,000, after a prompt of 3")
    assert found["finish reason"] == ("length", "last checkpoint 2026-01-31 14:28+00:00")
    assert found["speed"] == ("25.0 tokens/s", "1.50 times plain decoding, as estimated")
    assert found["time"] == ("28s", "of decoding; getting ready 2s, pauses 1m57s")
    assert found["mean acceptance length"] == ("1.50", "tokens per verification; 420 of them")
    assert found["acceptance rate"] == ("0.250", "of 840 drafted positions")
    assert found["Distinct-1, 2, 3, 4"][0] == "0.29 0.29 0.29 0.29"
    assert found["peak memory"] == ("1.00 GiB", "key-value cache 700 MiB")
    assert found["resumes"] == ("1", "2 sessions wrote")
    assert found["repetitions"][0] == "1"
    assert "The text repeats a cycle of 200 tokens since generated token 0." in page
    assert found["audit"][0] == "not audited"
    assert f"tokenswift verify {run_dir}" in page
    assert "ab" * 32 in page and "resumed here" in page
    assert '<th scope="row">seed</th><td>7 *</td>' in page


def test_the_figures_do_not_depend_on_time_or_order(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a" / "run", 4), make_run(tmp_path / "b" / "run", 4)
    one = page_of(first)
    assert page_of(first) == one
    assert page_of(second).replace(str(second), str(first)) == one
    assert "2026" not in re.sub(r"2026-01-31 14:\d\d", "", one)


def test_the_page_does_not_depend_on_the_users_matplotlibrc(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", 3)
    expected = page_of(run_dir)
    (tmp_path / "matplotlibrc").write_text("axes.facecolor: red\nfont.size: 30\nsvg.fonttype: path\n")
    environment = {**os.environ, "MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    words = [sys.executable, "-m", "tokenswift_cli", "report", str(run_dir)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (run_dir / "report.html").read_text(encoding="utf-8") == expected


def test_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [make_run(tmp_path / "a", 6), make_run(tmp_path / "b", 3, penalty=1.1, drafting=False)]
    monkeypatch.chdir(tmp_path)
    assert report(*paths) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not (paths[0] / "report.html").exists()
    seen = assert_closed(page)
    without = [key for key in OWN if key not in ("drafters", "depths", "map-4", "map-8")]
    expected = [("all", ALL), ("run-0", OWN), ("run-1", without)]
    assert seen.figures == [f"{name}-{key}" for name, keys in expected for key in keys]
    assert '<th scope="row">tokens</th><td>300</td><td>150</td>' in page
    assert '<th scope="row">sampling.penalty</th><td>1.2</td><td>1.1</td>' in page
    assert '<th scope="row">sampling.seed</th>' not in page
    figure = page[page.index('<figure id="all-speed">') :].split("</figure>")[0]
    assert "series-0" in figure and "series-1" in figure
    assert report(*paths, "-o", tmp_path / "other.html") == 0
    assert (tmp_path / "other.html").read_text(encoding="utf-8") == page


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name / "run", 2) for name in ("a", "b")]
    assert report(*paths, "-o", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h2>a/run</h2>" in page and "<h2>b/run</h2>" in page


def test_a_run_without_a_chunk(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", 0))
    seen = assert_closed(page)
    assert seen.figures == []
    assert "No chunk was saved yet" in page and "Not finished" in page
    assert cards(page)["tokens"][0] == "0" and cards(page)["speed"][0] == "-"
    assert "tokens.bin, SHA-256" in page


@pytest.mark.parametrize("chunks", [1, 2])
def test_few_chunks(tmp_path: Path, chunks: int) -> None:
    page = page_of(make_run(tmp_path / "run", chunks))
    seen = assert_closed(page)
    assert seen.figures == [f"run-0-{key}" for key in ONE if not key.startswith("map")]
    assert "Repetition map, 4-grams: none recurs." in page


def test_nothing_drafted(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", 6, drafting=False))
    seen = assert_closed(page)
    assert not {f"run-0-{key}" for key in ("length", "drafters", "depths")} & set(seen.figures)
    assert "Acceptance rate by depth: nothing was drafted." in page
    assert cards(page)["acceptance rate"] == ("-", "")


def old(record: dict[str, object]) -> None:
    """What the first version might have written."""
    for name in set(record) - {"tokens", "chunk_tokens", "decode_seconds"}:
        del record[name]


def nothing_of_use(record: dict[str, object]) -> None:
    for name in set(record) - {"tokens"}:
        record[name] = "?"


@pytest.mark.parametrize(
    ("change", "figures"),
    [
        (old, ["run-0-speed", "run-0-timeline", "run-0-map-4", "run-0-map-8"]),
        (nothing_of_use, ["run-0-map-4", "run-0-map-8"]),
    ],
)
def test_records_that_lack_fields(
    tmp_path: Path, change: Callable[[dict[str, object]], None], figures: list[str]
) -> None:
    page = page_of(make_run(tmp_path / "run", 6, change=change))
    assert assert_closed(page).figures == figures
    assert cards(page)["resumes"][0] == "-"


def test_a_very_long_run_makes_a_small_page(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", 300))
    assert_closed(page)
    assert len(page) < 1_000_000


def test_a_run_that_is_being_written(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", 4, finish_reason=None)
    with (run_dir / "tokens.bin").open("ab") as file:
        file.write(b"torn")
    with (run_dir / ".lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        page = page_of(run_dir)
    assert "Not finished" in page and cards(page)["tokens"][0] == "200"
    assert cli.run(["report", str(run_dir)]) == 0


def test_text_of_anybody_stays_text(tmp_path: Path) -> None:
    def spoil(record: dict[str, object]) -> None:
        record["drafters"] = {EVIL[:40]: {"drafted": 50, "accepted": 1}}

    name = EVIL.replace("/", "|").replace("\x1b", "")
    meta = {EVIL: EVIL, "model": {EVIL: [EVIL, {EVIL: EVIL}]}, "long": "x" * 5000}
    run_dir = make_run(tmp_path / name, 3, meta=meta, change=spoil, finish_reason=EVIL)
    forge_settings(run_dir, model__name=f"./{EVIL}", prompt__text=EVIL)
    page = page_of(run_dir)
    assert_closed(page)
    assert "<script" not in page and "<img" not in page
    assert "\x1b" not in page and "\u202e" not in page
    assert "&lt;script&gt;" in page and "(5,000 characters)" in page


def test_a_run_yaml_of_another_version_is_shown_as_it_is(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", 3)
    forge(run_dir, "run.yaml", b"model:\n  new_key: <b>1</b>\n")
    page = page_of(run_dir)
    assert_closed(page)
    assert "does not read run.yaml" in page and "new_key: &lt;b&gt;1&lt;/b&gt;" in page


@pytest.mark.parametrize("value", [None, 7, [], "x" * 10_000, {"a": {"b": {"c": {"d": {"e": 1}}}}}])
def test_any_meta_json(tmp_path: Path, value: object) -> None:
    run_dir = make_run(tmp_path / "run", 3)
    forge_meta(run_dir, lambda meta: meta.update({"model": value, **{str(n): n for n in range(300)}}))
    page = page_of(run_dir)
    assert_closed(page)
    assert "values of meta.json" in page


def test_damage_is_told(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", 6)
    lines = (run_dir / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[2] = b"x" * (len(lines[2]) - 1) + b"\n"
    (run_dir / "metrics.jsonl").write_bytes(b"".join(lines))
    page = page_of(run_dir)
    assert_closed(page)
    assert "metrics.jsonl is not what was written" in page
    assert "1 line of metrics.jsonl could not be used." in page


def test_a_missing_metrics_file_leaves_what_the_tokens_tell(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", 6)
    (run_dir / "metrics.jsonl").unlink()
    page = page_of(run_dir)
    assert assert_closed(page).figures == ["run-0-map-4", "run-0-map-8"]
    assert "metrics.jsonl cannot be read" in page


def test_links_are_not_followed(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", 3)
    secret = tmp_path / "secret"
    secret.write_text("must stay")
    (run_dir / "report.html").symlink_to(secret)
    (run_dir / "report.html.tmp").symlink_to(secret)
    (run_dir / "kv").symlink_to(tmp_path)
    page = page_of(run_dir)
    assert secret.read_text() == "must stay"
    assert not (run_dir / "report.html").is_symlink()
    assert "symbolic link" in page and cards(page)["key-value journal"][0] == "-"


def refusal(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    capsys.readouterr()
    code = report(*words)
    said = capsys.readouterr()
    assert code != 0 and said.out == ""
    assert said.err.startswith("Error: ") and said.err.count("\n") == 1 and "unexpected" not in said.err
    return code, said.err


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "file"):
        code, said = refusal(capsys, path)
        assert code == 2 and str(path) in said
    run_dir = make_run(tmp_path / "run", 2)
    assert refusal(capsys, run_dir, run_dir)[0] == 2
    assert refusal(capsys, *[make_run(tmp_path / f"run{n}", 0) for n in range(9)])[0] == 2
    change_raw_manifests(run_dir, chunk=7)
    assert refusal(capsys, run_dir)[0] == 3


def test_what_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make_run(tmp_path / "run", 2)
    for output in (tmp_path / "missing" / "page.html", run_dir):
        code, said = refusal(capsys, run_dir, "-o", output)
        assert code == 2 and str(output) in said
    assert not list(tmp_path.glob("**/*.tmp"))


def audit(run_dir: str, **changes: Any) -> dict[str, Any]:
    choices = {
        "range": [0, 150], "sample": None, "sample_seed": None, "requested": 150, "checked": 150,
        "matches": 150, "mismatches": 0, "first_mismatch": None, "first_mismatches": [], "unreadable": None,
        "rows_from_journal": 0, "read_seconds": 0.0, "check_seconds": 3.0, "tokens_per_second": 50.0,
    }  # fmt: skip
    choices |= changes.pop("choices", {})
    return {
        "run_dir": run_dir, "verified": True, "interrupted": False, "tokens": 150, "prompt_tokens": 3,
        "finish_reason": "length", "model": "tiny", "device": "cpu", "path": "native", "row_invariant": True,
        "written_on": "cpu", "files": {"sound": True, "problems": []}, "choices": choices,
    } | changes  # fmt: skip


def test_an_audit_is_shown_with_its_run(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", 3)
    other = make_run(tmp_path / "other", 3)
    file = tmp_path / "audit.json"
    file.write_text(json.dumps(audit("elsewhere/run")))
    page = page_of(run_dir, "--audit", file)
    assert "150 of 150 tokens are what the model chooses" in page and cards(page)["audit"][0] == "verified"
    wrong = {"position": 4, "token": 5, "chosen": 6, "margin": 0.5, "rank": 2, "candidates": 9, "near": False,
             "token_text": EVIL, "chosen_text": EVIL}  # fmt: skip
    file.write_text(json.dumps(audit(str(run_dir), choices={"mismatches": 1, "first_mismatches": [wrong]})))
    assert report(other, run_dir, "--audit", file, "-o", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert_closed(page)
    assert '<th scope="row">audit</th><td>not audited</td><td>not verified</td>' in page
    assert "First mismatch: position 4 holds token 5" in page


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", "[" * 100_000, json.dumps(audit("run", tokens="7")),
     json.dumps(audit("run", choices={"range": [1]})),
     json.dumps(audit("run", choices={"check_seconds": float("nan")})), json.dumps(audit("another")),
     json.dumps(audit("run", tokens=10**6)), json.dumps(audit("run", prompt_tokens=4))],
    ids=range(10),
)  # fmt: skip
def test_an_audit_that_is_none_of_this_run(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = make_run(tmp_path / "run", 3)
    file = tmp_path / "audit.json"
    file.write_text(content)
    code, said = refusal(capsys, run_dir, "--audit", file)
    assert code == 2 and "audit.json" in said
    assert not (run_dir / "report.html").exists()


def test_a_missing_audit_and_two_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make_run(tmp_path / "run", 3)
    assert refusal(capsys, run_dir, "--audit", tmp_path / "none.json")[0] == 2
    file = tmp_path / "audit.json"
    file.write_text(json.dumps(audit("run")))
    assert "Two --audit" in refusal(capsys, run_dir, "--audit", file, "--audit", file)[1]


def test_refusals_load_neither_numpy_nor_matplotlib(tmp_path: Path) -> None:
    script = (
        "import sys; from tokenswift_cli.cli import run; code = run(sys.argv[1:]); "
        "sys.exit(repr({'torch', 'numpy', 'matplotlib'} & set(sys.modules) or code))"
    )
    for words in (["report", "--help"], ["report", str(tmp_path / "missing")]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True, check=False
        )
        assert done.stderr.splitlines()[-1] in ("0", "2")


def test_a_real_run_resumed_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tiny_model_directory import save_tiny_model

    model, run_dir = save_tiny_model(tmp_path / "tiny"), tmp_path / "run"
    words = ["-o", str(run_dir), "-q", "-n", "200", "--chunk-tokens", "40", "--ignore-eos"]
    assert cli.run(["generate", "-m", str(model), "--prompt-text", "Once", *words]) == 0
    assert cli.run(["resume", str(run_dir), "-q", "--max-tokens", "280"]) == 0
    capsys.readouterr()
    assert cli.run(["verify", str(run_dir), "--json", "-q"]) == 0
    (tmp_path / "audit.json").write_text(capsys.readouterr().out)
    page = page_of(run_dir, "--audit", tmp_path / "audit.json")
    assert_closed(page)
    assert cards(page)["tokens"][0] == "280" and cards(page)["resumes"] == ("1", "2 sessions wrote")
    assert cards(page)["audit"][0] == "verified" and "280 of 280 tokens" in page
    record = json.loads((run_dir / "metrics.jsonl").read_bytes().splitlines()[-1])
    recorded = " ".join(f"{share:.2f}" for share in record["distinct"])
    assert cards(page)["Distinct-1, 2, 3, 4"][0] == recorded
    assert "run-0-speed" in page and "run-0-timeline" in page
    # The page is no part of the run.
    assert cli.run(["resume", str(run_dir), "-q", "--max-tokens", "300"]) == 0
