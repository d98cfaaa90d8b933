"""The page in a real browser: nothing on its console, nothing asked for, nothing wider than a telephone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from report_samples import make_run
from test_report import ALL, ONE, OWN

from tokenswift_cli import cli

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
SECONDS = 300  # for a machine that is busy with other things

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser to look with: none of {', '.join(BROWSERS)}"
)

# Puts pages into frames of several widths and colour schemes, and measures what came out.
LOOK = """<!DOCTYPE html><meta charset="utf-8"><body></body><script>
const views = VIEWS, results = [];
function measured(view, frame) {
  const page = frame.contentDocument, root = page.documentElement;
  const style = (element) => frame.contentWindow.getComputedStyle(element);
  const drawings = [...page.querySelectorAll("figure > svg")];
  return {
    ...view,
    page_width: root.scrollWidth,
    figures: [...page.querySelectorAll("figure")].map((figure) => figure.id),
    sizes: drawings.map((one) => one.getBoundingClientRect()).map((box) => [box.left, box.right, box.height]),
    texts: drawings.flatMap((one) => [...one.querySelectorAll("text")].map((text) => {
      const box = text.getBoundingClientRect(), outer = one.getBoundingClientRect();
      return [box.height, box.left - outer.left, outer.right - box.right, box.top - outer.top,
              outer.bottom - box.bottom];
    })),
    background: style(page.body).backgroundColor,
    text_colour: style(page.body).color,
    line_colours: drawings.flatMap((one) => [...one.querySelectorAll("path")]).map((path) =>
      style(path).stroke),
    columns: new Set(drawings.map((one) => Math.round(one.getBoundingClientRect().left))).size,
  };
}
for (const view of views) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${view.width}px; height: 800px; border: 0; color-scheme: ${view.scheme}`;
  frame.onload = () => {
    results.push(measured(view, frame));
    if (results.length === views.length) document.body.textContent = JSON.stringify(results);
  };
  frame.src = view.page;
  document.body.append(frame);
}
</script>"""


def browse(page: Path, *options: str) -> tuple[str, list[str]]:
    """The document after it was shown, and what the browser wrote to its console."""
    assert BROWSER is not None
    profile = page.parent / "profile"
    words = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
        "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={profile}",
        *options, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
    shutil.rmtree(profile, ignore_errors=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a page about one run and one about several."""
    path = tmp_path_factory.mktemp("pages")
    long_name = "a-run-with-a-name-that-is-far-too-long-for-a-telephone-" * 3
    runs = [
        make_run(path / "runs" / long_name, 12, resume_at=6),
        make_run(path / "runs" / "b", 5, penalty=1.1),
    ]
    assert cli.run(["report", str(runs[0]), "-o", str(path / "one.html")]) == 0
    assert cli.run(["report", *map(str, runs), "-o", str(path / "several.html")]) == 0
    return path


@pytest.fixture(scope="module")
def views(pages: Path) -> list[dict[str, Any]]:
    """What each page measures, by width and colour scheme."""
    wanted = [
        {"page": name, "width": width, "scheme": scheme}
        for name in ("one.html", "several.html")
        for width, scheme in ((1280, "light"), (390, "dark"), (320, "light"))
    ]
    look = pages / "look.html"
    look.write_text(LOOK.replace("VIEWS", json.dumps(wanted)))
    shown, _ = browse(look, "--allow-file-access-from-files", "--virtual-time-budget=20000")
    found = re.search(r"<body>(\[.*\])</body>", shown, re.DOTALL)
    assert found is not None, shown[-2000:]
    results: list[dict[str, Any]] = json.loads(html.unescape(found.group(1)))
    assert len(results) == len(wanted)
    return results


def test_the_console_stays_empty_and_the_figures_are_there(pages: Path) -> None:
    # The page forbids all loading by its policy, so that whatever it asked for would be told on the console.
    shown, console = browse(pages / "several.html")
    assert console == []
    assert re.findall(r'<figure id="all-([^"]+)"', shown) == list(ALL)


def test_the_console_would_tell_what_a_page_asks_for(pages: Path) -> None:
    page = (pages / "one.html").read_text(encoding="utf-8")
    spoilt = pages / "spoilt.html"
    spoilt.write_text(
        page.replace("</main>", '<img src="http://127.0.0.1:9/x.png"><script>1</script></main>'),
        encoding="utf-8",
    )
    _, console = browse(spoilt)
    assert len(console) >= 2 and "Content Security Policy" in "".join(console)


def test_every_figure_has_its_size(views: list[dict[str, Any]]) -> None:
    for view in views:
        one = [f"run-0-{key}" for key in ONE]
        several = [f"all-{key}" for key in ALL] + [f"run-{run}-{key}" for run in (0, 1) for key in OWN]
        present = view["figures"]
        assert present == (one if view["page"] == "one.html" else [key for key in several if key in present])
        assert len(present) >= len(ONE)
        for left, right, height in view["sizes"]:
            assert 0 <= left < right <= view["width"] and height > 100
            assert right - left > 0.4 * view["width"] or view["width"] > 1000


def test_nothing_is_wider_than_the_screen(views: list[dict[str, Any]]) -> None:
    assert [view["page_width"] for view in views] == [view["width"] for view in views]
    assert [view["columns"] for view in views] == [2 if view["width"] > 1000 else 1 for view in views]


def test_text_in_figures_is_legible_and_not_cut_off(views: list[dict[str, Any]]) -> None:
    for view in views:
        assert len(view["texts"]) > 50
        for height, *margins in view["texts"]:
            assert height > (10 if view["width"] >= 390 else 8)
            assert min(margins) >= -0.5


def luminance(colour: str) -> float:
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_follow_the_scheme(views: list[dict[str, Any]]) -> None:
    for view in views:
        dark = view["scheme"] == "dark"
        assert (luminance(view["background"]) < 0.2) == dark
        assert (luminance(view["text_colour"]) > 0.8) == dark
        lines = {colour for colour in view["line_colours"] if colour.startswith("rgb")}
        assert len(lines) >= 5
        assert not {colour for colour in lines if re.match(r"rgb\(1, 2, \d+\)", colour)}, "a stand-in is left"
        for colour in lines:
            assert abs(luminance(colour) - luminance(view["background"])) > 0.08
