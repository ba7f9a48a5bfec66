"""The live page in a real browser: Debian's chromium, driven by its own chromedriver, no network.

Screenshots are kept in tests/artefacts, to be looked at.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from watch_world import grow, page_over, write_mixture, write_train

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
def world(tmp_path_factory):
    """Three runs and their page; the third is the one that grows."""
    root = tmp_path_factory.mktemp("runs")
    write_mixture(root / "mixture")
    write_train(root / "sick", seed=1, sick=True)
    growing = write_train(root / "train <b>bold</b>")
    with page_over(root) as page:
        yield page, growing


def wait(browser, script: str, *args):
    """Until a script returns something true; what it returned."""
    from selenium.webdriver.support.ui import WebDriverWait

    look = WebDriverWait(browser, WAIT_S, poll_frequency=0.05)
    return look.until(lambda driver: driver.execute_script(f"return {script}", *args), script)


def text_of(browser, selector: str) -> str:
    return browser.execute_script("return document.querySelector(arguments[0]).innerText", selector)


def keep(browser, name: str) -> None:
    ARTEFACTS.mkdir(exist_ok=True)
    assert browser.save_screenshot(str(ARTEFACTS / f"{name}.png"))


def emulate(browser, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def open_run(browser, name: str) -> None:
    """Click on a run of the list."""
    buttons = "[...document.querySelectorAll('#runs .open')]"
    wait(browser, f"{buttons}.find((one) => one.innerText.includes(arguments[0]))", name).click()
    wait(browser, "document.querySelector('main h2')?.innerText === arguments[0]", name)


def test_it_loads_shows_a_mixture_and_is_dark_where_dark_is_liked(browser, world):
    page, _ = world
    emulate(browser, "light")
    address = page.address()
    browser.get(address)
    assert browser.current_url == f"http://127.0.0.1:{page.port}/"  # the token is gone from it
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
    assert "was used already" in text_of(browser, "body")
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
    browser.get(page.address())
    wait(browser, "document.querySelectorAll('#runs input').length === 3")
    for box in browser.find_elements("css selector", "#runs input")[:2]:  # the newest two
        box.click()
    button = browser.find_element("id", "compare")
    assert button.text == "compare 2"
    button.click()
    wait(browser, "document.querySelector('main h2')?.innerText === '2 runs compared'")
    wait(browser, "document.querySelector('.chart .plot')?.data?.length === 2")
    wait(browser, "document.querySelector('.config table')")
    assert "seed\t0\t1" in text_of(browser, ".config")
    legend = wait(browser, "document.querySelector('.chart .legend')?.textContent")
    assert "train <b>bold</b>" in legend  # not read as a tag by Plotly either
    keep(browser, "compare")


def test_a_narrow_window_has_no_sideways_scroll(browser, world):
    page, _ = world
    size = dict(width=390, height=844, deviceScaleFactor=1, mobile=False)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(page.address())
        open_run(browser, "mixture")
        wait(browser, "document.querySelector('.water-map.narrow')")
        keep(browser, "narrow")
        browser.execute_script("document.querySelector('.chart').scrollIntoView()")
        wait(browser, "document.querySelectorAll('.js-plotly-plot .main-svg').length")
        assert wait(browser, "document.documentElement.scrollWidth") <= 390
        keep(browser, "narrow-charts")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_nothing_was_blocked_but_a_sheet_of_plotlys_that_we_do_not_use(browser):
    """Plotly brings styles for maps as an inline sheet, which our policy refuses; once per load."""
    said = [line["message"] for line in browser.get_log("browser")]
    told = [text for text in said if "/plotly.js" not in text and "403" not in text]
    assert told == []


def test_without_token_or_under_another_name_there_is_nothing(browser, world, tmp_path):
    page, _ = world
    browser.delete_all_cookies()
    for path, why in (("/", "opens with the address"), ("/?token=wrong", "token is wrong")):
        browser.get(f"http://127.0.0.1:{page.port}{path}")
        assert why in text_of(browser, "body")
    browser.get(page.address().replace("127.0.0.1", "evil.localhost"))  # leads to this machine
    assert "not this server's name" in text_of(browser, "body")
    with page_over(tmp_path) as empty:
        browser.get(empty.address())
        wait(browser, "document.querySelector('main h2')?.innerText === 'No runs yet'")
        wanted = f"millpond train treasurehunt-small --run {tmp_path}/first"
        assert wanted in text_of(browser, "main")
        keep(browser, "empty")
