"""The report in Chromium: it opens without a complaint, its filters work, with a mouse and without, wide and narrow."""

from __future__ import annotations

from pathlib import Path

import pytest

from vime.report.page import write_report

pytest.importorskip("pyarrow")

NUM_GPUS = 0

CHOOSE = """(() => {{ const input = document.getElementById("filter-{name}"); input.value = {value!r};
input.dispatchEvent(new Event("change")); input.dispatchEvent(new Event("input")); }})()"""
COUNT = 'document.getElementById("samples-count").textContent.trim()'


@pytest.fixture(scope="session")
def page(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([run_folder], tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="session")
def two_runs(run_folder: Path, second_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([run_folder, second_run], tmp_path_factory.mktemp("page") / "report.html")


def choose(browser, name, value):
    browser.run(CHOOSE.format(name=name, value=value))
    return browser.run(COUNT)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_with_all_its_parts(browser, page, width, dark):
    browser.open(page, width=width, dark=dark)
    assert browser.complaints == []
    assert browser.run("document.title") == "first · vime report"
    assert browser.run('document.querySelectorAll("#charts canvas").length') == 8
    assert browser.run('document.querySelectorAll("#time canvas").length') == 1
    assert "No alerts" in browser.run('document.getElementById("alerts").textContent')
    assert browser.run(COUNT) == "120 samples in 30 groups"
    assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), "it scrolls sideways"
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(18, 21, 28)") == dark


def test_curves_are_really_drawn(browser, page):
    browser.open(page)
    drawn = """[...document.querySelectorAll("#charts canvas")].map((canvas) => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size > 10; })"""
    assert browser.run(drawn) == [True] * 8
    rows = browser.run('[...document.querySelectorAll("#funnel tbody tr")].map((row) => row.textContent.replaceAll("\\u200b", ""))')
    assert rows[0] == "generated120100%" and "zero_std_0.06 groups100%" in rows
    assert "Every sample is accounted for: 120 came, 120 ended above." in browser.run('document.getElementById("funnel").textContent')


@pytest.mark.parametrize("width", [1280, 390])
def test_the_filters_choose(browser, page, width):
    browser.open(page, width=width)
    assert choose(browser, "verdict", "failed") == "24 samples in 6 groups"
    assert choose(browser, "verdict", "") == "120 samples in 30 groups"
    assert choose(browser, "status", "truncated") == "6 samples in 6 groups"
    assert choose(browser, "status", "") == "120 samples in 30 groups"
    assert choose(browser, "step", "3") == "20 samples in 5 groups"
    assert choose(browser, "low", "0.5") == "3 samples in 3 groups"
    assert browser.run('document.querySelectorAll(".sample").length') == 12
    assert browser.run('document.querySelectorAll(".sample.hit").length') == 3
    browser.run('document.getElementById("filter-alone").click()')
    assert browser.run('document.querySelectorAll(".sample").length') == 3
    assert choose(browser, "text", "No SUCH text") == "No sample matches. Clear the filters"
    browser.run('document.querySelector("#samples-count button").click()')
    assert browser.run(COUNT) == "120 samples in 30 groups"
    assert choose(browser, "text", "THE SAME") == "24 samples in 6 groups"
    assert choose(browser, "split", "eval_held") == "No sample matches. Clear the filters"
    assert choose(browser, "text", "") == "4 samples in 2 groups"
    assert browser.complaints == []


def test_hostile_text_is_shown_as_text(browser, page):
    browser.open(page)
    assert choose(browser, "text", "onerror") == "6 samples in 6 groups"
    shown = browser.run('[...document.querySelectorAll(".sample.hit .text")].map((node) => node.textContent)')
    assert len(shown) == 6 and all(
        text.startswith("</script><script>document.title = 'owned'</script><img src=x onerror=") for text in shown
    )
    assert browser.run('document.querySelectorAll("main img, main script").length') == 0
    assert browser.run("document.title") == "first · vime report"
    assert browser.complaints == []


def test_an_injected_script_would_not_run(browser, page, tmp_path):
    torn = tmp_path / "torn.html"
    text = page.read_text(encoding="utf-8")
    torn.write_text(text.replace("</main>", "</main><script>document.title = 'owned'</script>"), encoding="utf-8")
    browser.open(torn)
    assert browser.run("document.title") == "first · vime report"
    assert any("Content Security Policy" in complaint for complaint in browser.complaints), "the check of the check"


def test_tokens_are_coloured_by_what_is_known(browser, page):
    browser.open(page)
    choose(browser, "step", "0")
    spans = '[...document.querySelectorAll(".group:first-of-type .sample:nth-of-type(2) .tokens span")]'
    choose(browser, "colour", "advantage")
    shades = f"{spans}.map((span) => [span.textContent, getComputedStyle(span).backgroundColor])"
    blue, orange = "rgba(60, 125, 230, ", "rgba(235, 140, 40, "
    assert browser.run(shades) == [[text, f"{blue}0.19)"] for text in ("one", "⏎\n<b>", " two")]
    choose(browser, "colour", "difference")
    assert browser.run(shades) == [["one", f"{blue}0)"], ["⏎\n<b>", f"{orange}0.75)"], [" two", f"{blue}0.75)"]]
    assert "trainer −0.5" in browser.run(f"{spans}[1].title")
    choose(browser, "verdict", "zero_std_0.0")
    assert "The trainer's log-probs were not recorded" in browser.run('document.querySelector(".sample").textContent')


def test_the_filters_work_with_the_keyboard_alone(browser, page):
    browser.open(page)
    browser.run('document.getElementById("filter-text").focus()')
    browser.press(*"same")
    assert browser.run(COUNT) == "24 samples in 6 groups"
    names = []
    for _ in range(4):
        browser.press("Tab")
        names.append(browser.run("document.activeElement.id || document.activeElement.textContent"))
    assert names[:3] == ["filter-colour", "filter-alone", "Clear"]
    browser.run('[...document.querySelectorAll("#filters button")].pop().focus()')
    browser.press("Enter")
    assert browser.run(COUNT) == "120 samples in 30 groups"


def test_more_groups_come_on_request(browser, page):
    browser.open(page)
    assert browser.run('document.querySelectorAll(".group").length') == 12
    browser.run('document.getElementById("more").click()')
    assert browser.run('document.querySelectorAll(".group").length') == 24
    browser.run('document.getElementById("more").click()')
    assert browser.run('[document.querySelectorAll(".group").length, document.getElementById("more").hidden]') == [30, True]


def test_all_metrics_are_there_by_name(browser, page):
    browser.open(page)
    browser.run('document.querySelector("#all-metrics summary").click(); new Promise((done) => setTimeout(done, 100))')
    names = browser.run('[...document.querySelectorAll("#all-charts strong")].map((node) => node.textContent)')
    assert "train/loss" in names and "hooks/math/custom_rm_ms" in names and len(names) == 24
    assert choose_metric(browser, "hooks") == ["hooks/math/custom_rm_ms"]
    assert browser.complaints == []


def choose_metric(browser, text):
    browser.run(
        f'{{ const input = document.getElementById("metric-filter"); input.value = "{text}"; input.dispatchEvent(new Event("input")); }}'
    )
    return browser.run('[...document.querySelectorAll("#all-charts strong")].map((node) => node.textContent)')


@pytest.mark.parametrize("width", [1280, 390])
def test_several_runs_lie_over_each_other(browser, two_runs, width):
    browser.open(two_runs, width=width)
    assert browser.complaints == []
    legend = '[...document.querySelectorAll("#charts .chart:first-child .legend span")].map((node) => node.textContent)'
    assert browser.run(legend)[:4] == ["first · trained on", "first · all finished", "second · trained on", "second · all finished"]
    alerts = browser.run('document.getElementById("alerts").textContent')
    assert alerts.startswith("1 alert75% of the responses are cut offsecond") and "rollout/truncated_ratio" in alerts
    browser.run('document.querySelector("#runs-shown input").click()')
    assert browser.run(legend)[:2] == ["second · trained on", "second · all finished"]
    assert choose(browser, "run", "1") == "80 samples in 20 groups"
    assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), "it scrolls sideways"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
