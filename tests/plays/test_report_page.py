"""The report page as a person sees it, in headless Chromium: at a desk and on a phone, in light and in dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import report_story
from ansible.module_utils.ironserve import hypotheses, page

ROOT = Path(__file__).resolve().parents[2]

TEMPLATE = (ROOT / "plugins" / "templates" / "report.html.j2").read_text()
SCREENSHOTS = ROOT / ".ironserve" / "screenshots"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

EVIL = '<script>document.title="owned"</script> & "quotes"'

PROBE = """<script>
addEventListener("load", () => {
  const seen = document.querySelector("#probe").contentDocument, root = seen.documentElement;
  const small = [...seen.querySelectorAll("figure svg text")].filter(text => text.textContent.trim())
    .map(text => text.getBoundingClientRect().height).filter(height => height > 0);
  const outside = [...seen.querySelectorAll("figure svg text")].filter(text => text.textContent.trim()).filter(text => {
    const box = text.getBoundingClientRect(), card = text.closest("figure").getBoundingClientRect();
    return box.width && (box.left < card.left - 1 || box.right > card.right + 1); }).map(text => text.textContent);
  document.body.append(Object.assign(document.createElement("pre"), {id: "found", textContent: JSON.stringify({
    width: root.scrollWidth, title: seen.title, outside, smallest: Math.min(...small),
    figures: Object.fromEntries([...seen.querySelectorAll("section")].map(section => [
      section.querySelector("h2").textContent,
      Object.fromEntries([...section.querySelectorAll("figure")].map(figure => [
        figure.dataset.chart, figure.querySelectorAll("circle.dot, rect.bar").length]))])),
    shown: seen.body.innerText, scripts: seen.scripts.length,
  })})); });
</script>"""


@pytest.fixture(scope="module")
def told():
    absent = {
        "gpu-a04": {
            "why": "ssh: connect to host gpu-a04 port 22: timed out",
            "kept": "its newest record was copied 2026-11-28",
        }
    }
    sections = hypotheses.sections(report_story.ledgers(EVIL))
    return {"at": "2026-11-30T22:50:00Z", "absent": absent, "unread": [], "sections": sections}


@pytest.fixture(scope="module")
def file(told, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page.render(told, TEMPLATE))
    return path


def chromium(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--enable-logging=stderr",
            "--allow-file-access-from-files", "--force-device-scale-factor=1", *words]  # fmt: skip
    return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=True)


def looked_at(file: Path, width: int) -> dict:
    """What is seen in a frame of that width: Chromium makes no window narrower than 500."""
    if not CHROMIUM:
        pytest.skip("this machine has no Chromium: make packages")
    frame = file.with_name(f"frame{width}.html")
    style = f"border:0;width:{width}px;height:9000px"
    frame.write_text(f'<!doctype html><iframe id="probe" src="report.html" style="{style}"></iframe>{PROBE}')
    done = chromium("--dump-dom", "--window-size=1400,9000", frame.as_uri())
    complaints = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    assert not complaints, complaints
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-2000:]
    return json.loads(html.unescape(found[1]))


def picture(file: Path, name: str, width: int, height: int, *words: str) -> Path:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    shot, frame = SCREENSHOTS / f"{name}.png", file.with_name(f"{name}.html")
    frame.write_text(
        f'<!doctype html><body style="margin:0"><iframe src="report.html" '
        f'style="border:0;width:{width}px;height:{height}px"></iframe>'
    )
    chromium(f"--screenshot={shot}", f"--window-size={max(width, 500)},{height}", *words, frame.as_uri())
    return shot


@pytest.mark.timeout(240)
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_its_charts_have_marks_and_nothing_complains(file, width):
    seen = looked_at(file, width)
    assert seen["width"] <= width
    assert seen["outside"] == []
    assert seen["smallest"] >= 10
    blackwell, lab = seen["figures"]["blackwell"], seen["figures"]["lab"]
    assert blackwell["speed"] == 3 * 4
    assert blackwell["history_low"] == blackwell["history_high"] == 6
    assert blackwell["starts"] > 40
    assert blackwell["downtime"] == 3 * 8
    assert lab["speed"] == 2 * 2
    # Hosts' words are text: no script came of them.
    assert (seen["title"], seen["scripts"]) == ("Ironserve: launches and measurements", 0)
    assert EVIL in " ".join(seen["shown"].split())


@pytest.mark.timeout(240)
def test_what_a_person_reads(file):
    shown = " ".join(looked_at(file, 1280)["shown"].split())
    assert "gpu-a04 gave no answer" in shown
    assert "its newest record was copied 2026-11-28" in shown
    assert "stalled in “capturing CUDA graphs” after 22m11s: no progress in 15m00s" in shown
    assert re.search(
        r"output tok/s, single-stream 63\.\d n=\d+ 82\.\d n=5 faster by (2[89]|3[01])\.\d%: 95% interval \+", shown
    )
    assert re.search(r"output tok/s, 128 at a time 2,3\d\d n=\d+ 1,5\d\d n=5 slower by 3[456]\.\d%", shown)
    assert "undecided: too few runs for an interval" in shown  # three runs a side in the lab
    assert "37 requests of others ran meanwhile" in shown
    assert "2 GPUs throttled (power cap), up to 31% of the run" in shown
    assert "8 x NVIDIA RTX PRO 6000 Blackwell Server Edition (sm120), PCIe switch, driver 580.95.05" in shown


@pytest.mark.timeout(240)
def test_pictures_are_kept(file):
    if not CHROMIUM:
        pytest.skip("this machine has no Chromium: make packages")
    dark = ("--blink-settings=preferredColorScheme=0",)
    shots = [
        picture(file, "report-1280", 1280, 4200),
        picture(file, "report-1280-dark", 1280, 4200, *dark),
        picture(file, "report-390", 390, 9000),
    ]
    sizes = [shot.stat().st_size for shot in shots]
    assert min(sizes) > 50_000
    assert sizes[0] != sizes[1]


def test_lines_beyond_the_colours_are_told_apart_and_are_all_in_the_legend(told):
    [section] = [section for section in told["sections"] if section["group"] == "blackwell"]
    speed = [{**section["speed"][0], "title": f"release {number}"} for number in range(10)]
    chart = page.charts({**section, "speed": speed})["speed"]
    legend = chart["legend"]
    assert [title for title, *_ in legend] == [f"release {number}" for number in range(10)]
    assert len({tuple(look) for _, *look in legend}) == 10
    assert legend[0][1:] == (page.COLOURS[0], "")
    assert "stroke-dasharray:9,4" in str(chart["svg"]).replace(" ", "")


def test_a_baseline_that_could_not_be_read_is_told(told):
    shown = page.render({**told, "unread": ["/b/lab/main.json: is no JSON"]}, TEMPLATE)
    assert "A recorded baseline was left out</b>: /b/lab/main.json: is no JSON" in shown


def test_the_page_needs_nothing_from_elsewhere(file):
    text = file.read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"<(script|link rel=.stylesheet|img|iframe)|@import|url\(", text)
    assert not re.findall(r"""(?:src|href)=["']https?:""", text)
