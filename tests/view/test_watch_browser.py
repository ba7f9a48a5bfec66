"""The live page in a real browser: Debian's chromium, driven by its own chromedriver, no network.

Screenshots are kept in tests/artefacts, to be looked at.
"""

from __future__ import annotations

import contextlib
import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from many_runs import swept, write_many
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from tiny_runs import settings
from watch_world import grow, page_over, write_mixture, write_train

from millpond.metrics import read_metrics
from millpond.train import Run
from millpond.view import run_report
from millpond.view.report import save_report

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
ARTEFACTS = Path(__file__).parents[1] / "artefacts"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--window-size=1400,1000",
)
WAIT_S = 20

pytestmark = [
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="no browser: apt-get install chromium chromium-driver runs these tests",
    ),
    pytest.mark.xdist_group("browser"),
    # The driver's sockets are closed by its own process, not by ours.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    driver.set_page_load_timeout(WAIT_S)
    driver.set_script_timeout(WAIT_S)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Thirty runs of a sweep, and their page."""
    root = tmp_path_factory.mktemp("many")
    runs = write_many(root, 30)
    with page_over(root) as page:
        yield page, runs


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Three runs and their page; the third is the one that grows."""
    root = tmp_path_factory.mktemp("runs")
    write_mixture(root / "mixture")
    write_train(root / "sick", seed=1, sick=True)
    growing = write_train(root / "train <b>bold</b>")
    with page_over(root) as page:
        yield page, growing


def wait(browser, script: str, *args, timeout_s: float = WAIT_S):
    """Until a script returns something true; what it returned."""
    look = WebDriverWait(browser, timeout_s, poll_frequency=0.05)
    return look.until(lambda driver: driver.execute_script(f"return {script}", *args), script)


def text_of(browser, selector: str) -> str:
    return browser.execute_script("return document.querySelector(arguments[0]).innerText", selector)


def keep(browser, name: str) -> None:
    ARTEFACTS.mkdir(exist_ok=True)
    assert browser.save_screenshot(str(ARTEFACTS / f"{name}.png"))


def emulate(browser, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def open_page(browser, page, where: str = "") -> None:
    """The page at a place; what the browser remembers of charts is forgotten. Loaded once only."""
    here = f"http://127.0.0.1:{page.port}/"
    if not browser.current_url.startswith(here):
        browser.get(page.address())
    browser.execute_script("localStorage.clear(); location.hash = 'elsewhere'")
    wait(browser, "document.querySelector('#link-text').innerText === 'live'")
    browser.execute_script("location.hash = arguments[0]", where)
    place = "decodeURIComponent(location.hash.slice(1)) === arguments[0]"
    wait(browser, f"{place} && document.querySelector('main section')", where)


def open_run(browser, name: str) -> None:
    """Click on a run of the table."""
    browser.execute_script("location.hash = 'each=1'")
    links = "[...document.querySelectorAll('.runs-table a')]"
    wait(browser, f"{links}.find((one) => one.innerText.includes(arguments[0]))", name).click()
    wait(browser, "document.querySelector('main h2')?.innerText === arguments[0]", name)


def plot(name: str) -> str:
    """The chart of a name, as JavaScript."""
    return f"document.querySelector('[data-figure=\"{name}\"] .plot')"


def rows(browser) -> list[str]:
    """Names in the table, from top to bottom."""
    names = "[...document.querySelectorAll('.runs-table tbody .run-name > :first-child')]"
    return browser.execute_script(f"return {names}.map((one) => one.innerText)")


_CHOOSE = """((label, value) => {
  const boxes = [...document.querySelectorAll('.choice')];
  const select = boxes.find((one) => one.firstChild.innerText === label)?.querySelector('select');
  if (![...(select?.options || [])].some((one) => one.value === value)) return false;
  select.value = value;
  select.dispatchEvent(new Event('change'));
  return true;
})(arguments[0], arguments[1])"""


def choose(browser, label: str, value: str) -> None:
    """Choose a value in the select that has this label, once it has it."""
    wait(browser, _CHOOSE, label, value)


def show(browser, figure: str, curves: int) -> None:
    """Scroll to a figure, and wait until so many of its curves are drawn."""
    box = f"[data-figure={figure}]"
    wait(browser, "document.querySelector(arguments[0])", box)
    browser.execute_script("document.querySelector(arguments[0]).scrollIntoView()", box)
    wait(browser, f"{plot(figure)}.data?.length === {curves}")


def evaluations(run) -> list[dict]:
    return list(read_metrics(run.metrics, "eval"))


def test_it_loads_shows_a_mixture_and_is_dark_where_dark_is_liked(browser, world):
    page, _ = world
    emulate(browser, "light")
    address = page.address()
    browser.get(address)
    assert browser.current_url == f"http://127.0.0.1:{page.port}/"  # the token is gone from it
    wait(browser, "document.querySelectorAll('.runs-table tbody tr').length")
    open_run(browser, "mixture")
    wait(browser, "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 2")
    wait(browser, "document.querySelector('#link-text').innerText === 'live'")
    places = wait(
        browser, "[...document.querySelectorAll('.place-name')].map((x) => x.textContent)"
    )
    assert places == ["Agents", "Ponds", "Lake", "BigPond", "BigAgent"]
    assert "80%" in text_of(browser, "main")
    assert wait(browser, "document.querySelector('main .facts').innerText.includes('BigAgent')")
    keep(browser, "light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = wait(browser, ground)
    emulate(browser, "dark")
    wait(browser, f"{ground} !== arguments[0]", light)
    keep(browser, "dark")
    browser.find_element("id", "theme").click()
    wait(browser, f"{ground} === arguments[0]", light)  # asked for by hand: light
    emulate(browser, "light")
    browser.get(address)  # its token is spent
    assert "was already used" in text_of(browser, "body")
    browser.get(f"http://127.0.0.1:{page.port}/")  # but the cookie opens it
    open_run(browser, "mixture")


def test_an_update_arrives_and_names_are_text(browser, world):
    page, growing = world
    browser.get(page.address())
    open_run(browser, "train <b>bold</b>")
    assert not browser.find_elements("css selector", "#runs b, main h2 b")
    last = "[...document.querySelectorAll('.chart')].find((x) => x.dataset.figure === 'returns')"
    curve = f"{last}?.querySelector('.plot').data?.at(-1).x.at(-1)"
    assert wait(browser, curve) == 16 * 30
    grow(growing, 31, 35)
    wait(browser, f"{curve} === {16 * 35}")
    assert "560 frames" in text_of(browser, ".now")


def test_the_doctors_verdict_comes_with_evidence_and_remedy(browser, world):
    page, _ = world
    browser.get(page.address())
    open_run(browser, "sick")
    wait(browser, "document.querySelector('.verdict[data-state=red]')")
    verdict = text_of(browser, ".verdict[data-state=red]")
    assert "process-health" in verdict
    assert "<b>SIGKILL</b>" in verdict
    assert "What to do: read the traceback in events.jsonl" in verdict
    assert "lost 3" in verdict
    assert "actor 0" in text_of(browser, ".processes")
    assert "doctor: red" in text_of(browser, ".head")
    keep(browser, "doctor")


def test_runs_are_chosen_and_compared(browser, world):
    page, _ = world
    open_page(browser, page, "each=1")
    wait(browser, "document.querySelectorAll('.runs-table tbody input').length === 3")
    for box in browser.find_elements("css selector", ".runs-table tbody input")[:2]:  # the newest
        box.click()
    (button,) = [
        one
        for one in browser.find_elements("css selector", ".filters button")
        if "compare" in one.text
    ]
    assert button.text == "compare 2"
    button.click()
    wait(browser, "document.querySelector('main h2')?.innerText === '2 runs compared'")
    choose(browser, "curves", "each")
    wait(browser, f"{plot('compare-greedy')}?.data?.length === 2")
    wait(browser, "document.querySelector('.config table')")
    assert "seed\t0\t1" in text_of(browser, ".config")
    legend = wait(browser, "document.querySelector('.chart .legend')?.textContent")
    assert "train <b>bold</b>" in legend  # not read as a tag by Plotly either
    keep(browser, "compare")


# --- many runs -----------------------------------------------------------------------------------


def test_the_overview_sorts_groups_and_filters(browser, many):
    page, _ = many
    open_page(browser, page)
    wait(browser, "document.querySelectorAll('.runs-table tbody tr').length === 6")
    assert rows(browser)[0] == "staghunt-batch-64-gamma-0.9-width-8 5 seeds"
    # Each of the three envs has a chart with two means and their bands.
    drawn = "[...document.querySelectorAll('.chart .plot')].map((one) => one.data?.length)"
    wait(browser, f"{drawn}.join() === '4,4,4'")
    button = browser.find_element("css selector", ".unfold")
    button.send_keys(Keys.ENTER)
    wait(browser, "document.querySelectorAll('.runs-table tbody tr').length === 11")
    assert browser.switch_to.active_element == button, "the keyboard stays where it was"
    assert button.get_attribute("aria-expanded") == "true"
    keep(browser, "overview")
    button.send_keys(Keys.ENTER)
    wait(browser, "document.querySelectorAll('.runs-table tbody tr').length === 6")
    browser.find_element("css selector", "[data-sort=greedy]").send_keys(Keys.ENTER)
    bands = "[...document.querySelectorAll('.runs-table .band')]"
    greedy = f"{bands}.map((one) => parseFloat(one.parentNode.firstChild.data))"
    falling = wait(browser, greedy)
    assert falling == sorted(falling, reverse=True)
    browser.find_element("css selector", "[data-sort=greedy]").send_keys(Keys.ENTER)
    wait(browser, "document.querySelector('[aria-sort=ascending]')")
    assert wait(browser, greedy) == sorted(falling)
    choose(browser, "env", "staghunt")
    wait(browser, "document.querySelectorAll('.runs-table tbody tr').length === 2")
    wait(browser, "document.querySelectorAll('.chart').length === 1")
    choose(browser, "setting", "dqn.batch")
    choose(browser, "value", "64")
    wait(browser, "document.querySelectorAll('.runs-table tbody tr').length === 1")
    assert "dqn.batch" in text_of(browser, ".runs-table thead")
    assert "5 of 30 runs" in text_of(browser, ".filters")
    assert "env=staghunt" in browser.current_url, "a reload stays where it was"
    browser.refresh()
    wait(browser, "document.querySelectorAll('.runs-table tbody tr').length === 1")
    browser.find_element("css selector", "input[type=search]").send_keys("no such run")
    wait(browser, "!document.querySelector('.nothing').hidden")
    assert "No run matches these filters (30 runs in all)." in text_of(browser, ".nothing")
    browser.find_element("css selector", ".nothing button").click()
    wait(browser, "document.querySelectorAll('.runs-table tbody tr').length === 6")


def test_a_run_that_failed_says_why(browser, many):
    page, _ = many
    open_page(browser, page, "state=failed&each=1")
    wait(browser, "document.querySelector('.runs-table .why')")
    assert "ValueError: observation 3" in text_of(browser, ".runs-table")
    browser.find_element("css selector", ".runs-table a").click()
    wait(browser, "document.querySelector('.head .why p')")
    assert "ValueError: observation 3" in text_of(browser, ".head .why")
    assert text_of(browser, ".head .state") == "failed"
    assert "compare them" in text_of(browser, ".seeds")


def set_smoothing(browser, weight: float) -> None:
    script = """
        const slider = document.querySelector('.controls input[type=range]');
        slider.value = arguments[0];
        slider.dispatchEvent(new Event('input'));"""
    browser.execute_script(script, weight)


def test_charts_smooth_scale_and_zoom_together(browser, many):
    page, runs = many
    open_page(browser, page, "each=1")
    open_run(browser, runs[1].path.name)
    last = f"{plot('returns')}?.data?.at(-1)"
    raw = np.array(wait(browser, f"{last}?.y"))
    set_smoothing(browser, 0.6)
    wait(browser, f"{plot('returns')}.data.length > 4")  # what was measured stays, pale
    weights = np.array(
        [[0.4 * 0.6 ** (i - j) * (j <= i) for j in range(len(raw))] for i in range(len(raw))]
    )
    assert wait(browser, f"{last}.y") == pytest.approx(weights @ raw / weights.sum(1), rel=1e-6)
    set_smoothing(browser, 0)
    wait(browser, f"{plot('returns')}.data.length === 3")
    for name, title, factor in (
        ("steps", "steps", 100),
        ("time", "minutes", 0.8 / 60),
        ("frames", "frames", 400),
    ):
        choose(browser, "x", name)
        wait(browser, f"{plot('returns')}.layout.xaxis.title.text === '{title}'")
        assert wait(browser, f"{last}.x") == pytest.approx(
            10 * factor * np.arange(1, len(raw) + 1), rel=1e-3
        )
    show(browser, "q", 1)
    scale = browser.find_element("css selector", "[data-figure=q] .tool")
    scale.send_keys(Keys.ENTER)
    wait(browser, f"{plot('q')}.layout.yaxis.type === 'log'")
    assert scale.get_attribute("aria-pressed") == "true"
    drawn = "[...document.querySelectorAll('.chart .plot')].filter((one) => one.layout)"
    titles = f"{drawn}.map((one) => one.layout.yaxis.title.text)"
    assert all(wait(browser, titles)), "every y has a name"
    surface = browser.find_element("css selector", "[data-figure=q] .nsewdrag")
    drag = ActionChains(browser, duration=50).move_to_element_with_offset(surface, -60, 0)
    drag.click_and_hold().move_by_offset(60, 3).move_by_offset(60, 3).release().perform()
    low, high = wait(browser, f"{plot('q')}.layout.xaxis.range")
    whole = 400 * len(raw) * 10
    assert 0 < low < high < whole
    wait(browser, f"{plot('loss')}.layout.xaxis.range?.join() === '{low},{high}'")
    browser.execute_script("scrollTo(0, 0)")
    wait(browser, f"{plot('returns')}.layout.xaxis.range?.join() === '{low},{high}'")
    shown = wait(browser, f"{plot('returns')}.layout.yaxis.range")
    assert shown[0] > 0, "the y fits what is seen, not the beginning"
    browser.find_element("xpath", "//button[text()='reset zoom']").click()
    wait(browser, f"{plot('returns')}._fullLayout.xaxis.range[1] >= {whole}")
    show(browser, "q", 1)
    wait(browser, f"{plot('q')}._fullLayout.xaxis.range[1] >= {whole}")


def test_charts_are_downloaded(browser, many, tmp_path):
    page, runs = many
    about = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", about)
    open_page(browser, page, "each=1")
    open_run(browser, runs[1].path.name)
    wait(browser, f"{plot('returns')}?.data?.length")
    for name in ("CSV", "PNG"):
        browser.find_element(
            "xpath", f"//*[@data-figure='returns']//button[text()='{name}']"
        ).click()
    WebDriverWait(browser, WAIT_S).until(
        lambda _: {path.name for path in tmp_path.iterdir()} == {"returns.csv", "returns.png"}
    )
    with open(tmp_path / "returns.csv", newline="") as file:
        found = [row for row in csv.DictReader(file) if row["curve"] == "greedy"]
    lines = evaluations(runs[1])
    assert [int(row["frames"]) for row in found] == [line["frames"] for line in lines]
    assert [int(row["steps"]) for row in found] == [line["steps"] for line in lines]
    assert [float(row["return"]) for row in found] == pytest.approx(
        [line["return"] for line in lines], rel=1e-5
    )
    assert float(found[0]["minutes"]) == pytest.approx(8 / 60, rel=1e-3)
    with Image.open(tmp_path / "returns.png") as picture:
        assert picture.size == (2000, 1120)
        assert np.asarray(picture.convert("L")).std() > 5, "it is not empty"


def test_thirty_runs_are_compared_by_run_and_by_mean(browser, many):
    page, runs = many
    open_page(browser, page)
    wait(browser, "document.querySelectorAll('.runs-table tbody tr').length === 6")
    browser.find_element("xpath", "//button[text()='select all shown']").click()
    browser.find_element("xpath", "//button[text()='compare 30']").click()
    wait(browser, "document.querySelector('main h2')?.innerText === '30 runs compared'")
    wait(
        browser,
        f"{plot('compare-greedy')}?.data?.length === 12",
    )  # six means, six bands
    ours = [run for run in runs if run.path.name.startswith("staghunt-batch-32")]
    assert all(run.status()["state"] == "finished" for run in ours)
    table = np.array([[line["return"] for line in evaluations(run)] for run in ours])
    lines = wait(browser, f"{plot('compare-greedy')}.data.filter((one) => !one.fill)")
    bands = wait(browser, f"{plot('compare-greedy')}.data.filter((one) => one.fill)")
    place = [line["name"] for line in lines].index("staghunt-batch-32-gamma-0.9-width-8 (5)")
    assert lines[place]["y"] == pytest.approx(table.mean(0), rel=1e-4)
    wanted = [*table.max(0), *table.min(0)[::-1]]
    assert bands[place]["y"] == pytest.approx(wanted, rel=1e-4)
    choose(browser, "curves", "each")
    wait(browser, f"{plot('compare-greedy')}.data.length === 30")
    assert "30 curves" in text_of(browser, "[data-figure=compare-greedy] .note")
    # Charts below are asked for when they are seen: an agent's own numbers are among them.
    assert browser.find_elements("css selector", "[data-figure=compare-entropy] .waiting")
    show(browser, "compare-entropy", 30)
    assert not browser.find_elements("css selector", "[data-figure=compare-entropy] .waiting")
    assert "dqn.batch" in wait(browser, "document.querySelector('.config table')?.innerText")
    keep(browser, "compare-30")
    # However many settings differ, the names of the runs can be read.
    names = "[...document.querySelectorAll('.config td:first-child')]"
    wait(browser, f"{names}.length === 30")
    assert wait(browser, f"Math.min(...{names}.map((one) => one.clientWidth))") > 150
    scored = sum(bool(evaluations(run)) for run in runs)
    show(browser, "parallel", scored)
    assert text_of(browser, "[data-figure=parallel] h3") == "Settings and score"
    keep(browser, "parallel")


PHONE = dict(width=390, height=844, deviceScaleFactor=1, mobile=False)


@contextlib.contextmanager
def phone(browser):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_telephone_has_no_sideways_scroll(browser, world, many):
    width = "document.documentElement.scrollWidth"
    with phone(browser):
        page, _ = many
        open_page(browser, page)
        wait(browser, "document.querySelectorAll('.js-plotly-plot .main-svg').length")
        assert wait(browser, width) <= 390
        assert "progress" not in text_of(browser, ".runs-table thead")
        inside = "document.querySelector('.table-panel .scroll')"
        assert wait(browser, f"{inside}.scrollWidth") <= wait(browser, f"{inside}.clientWidth")
        keep(browser, "narrow-overview")
        page, _ = world
        open_page(browser, page)
        open_run(browser, "mixture")
        wait(browser, "document.querySelector('.water-map.narrow')")
        wait(browser, "document.querySelectorAll('.js-plotly-plot .main-svg').length")
        assert wait(browser, width) <= 390
        keep(browser, "narrow")
        ids = ",".join(page.runs.cards()["order"])
        browser.execute_script(f"location.hash = 'compare={ids}'")
        wait(browser, "document.querySelector('.js-plotly-plot .main-svg')")
        assert wait(browser, width) <= 390
        keep(browser, "narrow-compare")


def test_a_server_that_ended_leaves_the_page_readable(browser, tmp_path):
    run = write_train(tmp_path / "a", 10)
    with page_over(tmp_path) as page:
        open_page(browser, page)
        open_run(browser, "a")
        greedy = f"{plot('returns')}?.data?.at(-1).x.length"
        wait(browser, f"{greedy} === 2")
        wait(browser, "document.querySelector('.doctor .verdict-head')")
        grow(run, 11, 15)
    wait(browser, "document.querySelector('#link-text').innerText === 'ended'")
    assert "The server stopped at" in text_of(browser, "#ended")
    wait(browser, f"{greedy} === 3")  # the last lines have come too
    assert "240 frames" in text_of(browser, ".now")
    show(browser, "loss", 3)
    browser.execute_script("location.hash = ''")
    wait(browser, "document.querySelectorAll('.runs-table tbody tr').length === 1")
    assert "The server stopped at" in text_of(browser, "#ended")
    keep(browser, "ended")


@pytest.mark.full
def test_reports_have_the_same_charts_and_need_no_network(browser, many, tmp_path, monkeypatch):
    _, runs = many
    monkeypatch.setattr(run_report, "_pictures", lambda *_: [])
    pairs = run_report.read_runs([run.path for run in runs[:3]])
    run_report.save_run_report(tmp_path / "report.html", pairs, with_film=False)
    browser.get(f"file://{tmp_path}/report.html")
    wait(browser, f"{plot('compare-greedy')}?.data?.length === 2")  # one group: its mean, its band
    assert browser.execute_script("return document.querySelectorAll('.controls').length") == 4
    keep(browser, "report")
    save_report(tmp_path / "sweep.html", swept(14))
    browser.get(f"file://{tmp_path}/sweep.html")
    wait(browser, f"{plot('parallel')}?.data?.length === 14")
    show(browser, "arms-scores", 28)
    keep(browser, "sweep")


@pytest.mark.full
def test_three_hundred_runs_stay_usable(browser, tmp_path):
    write_many(tmp_path, 300, 100)
    with page_over(tmp_path) as page:
        open_page(browser, page)
        wait(
            browser,
            "document.querySelectorAll('.runs-table tbody tr').length === 60",
            timeout_s=120,
        )
        wait(
            browser, "document.querySelectorAll('.js-plotly-plot .main-svg').length", timeout_s=120
        )
        browser.execute_script("location.hash = 'each=1'")
        wait(
            browser,
            "document.querySelectorAll('.runs-table tbody tr').length === 300",
            timeout_s=120,
        )
        assert wait(browser, "document.querySelectorAll('*').length") < 15_000
        browser.find_element("xpath", "//button[text()='select all shown']").click()
        browser.find_element("xpath", "//button[text()='compare 300']").click()
        wait(browser, "document.querySelector('main h2')?.innerText === '300 runs compared'")
        means = f"{plot('compare-greedy')}?.data?.filter((one) => !one.fill).length === 60"
        wait(browser, means, timeout_s=120)
        choose(browser, "curves", "each")
        wait(browser, f"{plot('compare-greedy')}.data.length === 300", timeout_s=120)
        keep(browser, "compare-300")


def test_nothing_was_refused(browser):
    """Of all that this module's pages did: no script, style or address was against the policy."""
    said = [line["message"] for line in browser.get_log("browser")]
    network = ("403", "503", "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING")
    assert [text for text in said if not any(one in text for one in network)] == []


def test_without_token_or_under_another_name_there_is_nothing(browser, world, tmp_path):
    page, _ = world
    browser.execute_cdp_cmd("Network.clearBrowserCookies", {})
    for path, why in (("/", "needs the address with a token"), ("/?token=wrong", "token is wrong")):
        browser.get(f"http://127.0.0.1:{page.port}{path}")
        assert why in text_of(browser, "body")
    browser.get(page.address().replace("127.0.0.1", "evil.localhost"))  # leads to this machine
    assert "does not answer to the host name" in text_of(browser, "body")
    with page_over(tmp_path) as empty:
        browser.get(empty.address())
        wait(browser, "document.querySelector('main h2')?.innerText === 'No runs yet'")
        wanted = f"millpond train treasurehunt-small --run {tmp_path}/first"
        assert wanted in text_of(browser, "main")
        keep(browser, "empty")


def test_a_run_that_failed_at_once_says_why_and_leaves_no_hole(browser, tmp_path):
    """No line was written: the doctor is red, and there is no chart that waits for ever."""
    run = Run.create(tmp_path / "early", settings())
    run.gave_up(ValueError("the robot fell over"))
    for file in (run.metrics, run.path / "speed.jsonl"):
        file.touch()
    with page_over(tmp_path) as page:
        open_page(browser, page)
        open_run(browser, "early")
        wait(browser, "document.querySelector('.head .state:last-child').innerText.includes('red')")
        assert "ValueError: the robot fell over" in text_of(browser, ".why")
        wait(browser, "document.querySelector('.no-return')?.innerText.includes('No return yet')")
        assert (
            browser.execute_script("return document.querySelectorAll('[data-figure]').length") == 0
        )
        # The doctor's evidence has the traceback too: folded, and line by line.
        lines = "document.querySelector('.verdict details pre').textContent.split('\\n').length"
        assert wait(browser, lines) > 1
        assert "Traceback" not in text_of(browser, ".verdict")
        keep(browser, "failed-early")


def test_a_point_alone_and_the_same_seed_twice_are_shown_as_such(browser, tmp_path):
    for name in ("first", "second"):
        write_train(tmp_path / name, lines=5)
    with page_over(tmp_path) as page:
        open_page(browser, page)
        wait(browser, "document.querySelector('.runs-table .count')?.innerText === '2 runs'")
        axis = "document.querySelector('[data-figure] .plot')._fullLayout?.xaxis"
        assert wait(browser, f"{axis}?.range")[0] <= 0
        wait(browser, "document.querySelector('.runs-table .unfold').click() || true")
        wait(browser, "document.querySelector('.of-group a')").click()
        wait(browser, "document.querySelector('.seeds a')")
        said = text_of(browser, ".seeds")
        assert "runs of these settings" in said
        assert "first" in said
        assert "second" in said
