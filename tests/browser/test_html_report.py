"""The HTML report as a reader has it: in a browser, without a network, by mouse and by keyboard."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from gpubench.analysis.analyse import analyse
from gpubench.report import render
from gpubench.report.contents import chart_set
from gpubench.report.layout import RenderOptions
from gpubench.result import store
from tests.unit.report.answer_runs import (
    WAITED,
    answer_run,
    no_gpu_run,
    one_op_run,
    op_rows,
    suite_run,
)
from tests.unit.report.builders import CPU, GPU, case, curve, measured, run_of
from tests.unit.report.formats.hostile import NAMES, hostile_run
from tests.unit.report.samples import cpu_run, full_run, hybrid_run, software_run

pytestmark = pytest.mark.chromium

CHARTS = {"time", "speedup", "roofline"}
HOSTILE = [
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "\"'><svg onload=window.pwned=1>",
    "a & b &lt; c",
    "\u202ereversed\u202c \u2066x",
    "GPU 🔥 naïve",
    "x" * 200,
]


def points(page, name):
    return page.locator(f"#r0-chart-{name} svg .mark-symbol.role-mark path").count()


def charted(run, name):
    """How many points the chart begins with."""
    charts = chart_set(analyse(run), RenderOptions())
    return next(len(chart.rows[charts.chosen]) for chart in charts.charts if chart.id == name)


def choose(page, act):
    """Do something to the controls and wait until everything is drawn anew."""
    part = page.locator("[data-ready]").first
    before = part.get_attribute("data-ready")
    act()
    page.wait_for_function(
        "before => document.querySelector('[data-ready]').dataset.ready !== before", arg=before
    )


@pytest.fixture(scope="module")
def whole(open_pages):
    """The page of a whole run, for tests that change nothing in it."""
    with open_pages() as opened:
        yield opened(full_run())


def test_every_chart_is_drawn_without_a_network(whole):
    page = whole
    assert {part.get_attribute("id") for part in page.locator(".chart").all()} == {
        f"r0-chart-{name}" for name in CHARTS
    }
    for name in CHARTS:
        assert page.locator(f"#r0-chart-{name} svg").count() == 1, name
        assert page.locator(f"#r0-chart-{name} svg path").count() > 5, name
    assert points(page, "time") == charted(full_run(), "time") > 8


@pytest.mark.parametrize(
    ("run", "said"), [(suite_run, "wins all 14"), (one_op_run, "pays from"), (no_gpu_run, "No GPU here")]
)
def test_the_page_begins_with_the_sentence_the_map_and_the_table(opened, run, said):
    """It does so in two seconds, and its table fits a phone."""
    page = opened(run())
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert painted < 2000
    sentence = page.locator(".sentence").first
    assert said in sentence.inner_text()
    assert sentence.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") >= 20
    places = [".sentence", "figure.map", ".thresholds table", "[data-charts]", ".details"]
    tops = [page.locator(place).first.bounding_box()["y"] for place in places if page.locator(place).count()]
    assert tops == sorted(tops)
    assert page.locator("figure.map").count() == (run is not no_gpu_run)
    assert page.locator("figure.map .panel svg").count() == 2 * (run is suite_run) + (run is one_op_run) * 2
    assert all(not one.get_attribute("open") for one in page.locator(".details details").all())
    page.set_viewport_size({"width": 400, "height": 900})
    table = "(t => t.scrollWidth - t.parentElement.clientWidth)(document.querySelector('table'))"
    assert page.evaluate(table) <= 0


def test_warnings_are_announced_below_the_answer(opened):
    page = opened(run_of(curve({64: 0.25, 256: 0.5, 1024: 3.0, 4096: 9.0}, sessions=3), sessions=3))
    assert "warning" in page.locator(".notice").inner_text()


def test_the_map_is_there_before_any_script_has_run(opened):
    page = opened(suite_run(), script=False)
    lines = page.locator("figure.map pre").inner_text().splitlines()
    assert sum("▆" in line for line in lines) > 5
    assert any(line.startswith("gelu") for line in lines)


def test_the_map_has_the_colours_that_its_reader_prefers(opened):
    page = opened(suite_run())
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("() => document.getElementById('r0-map').dataset.drawn === '2'")
    assert page.locator("#r0-map .panel svg .mark-rule line[stroke='#e6e9ee']").count() > 14


def test_without_script_the_numbers_are_there_and_nothing_is_offered_that_would_do_nothing(opened):
    page = opened(full_run(), script=False)
    assert "JavaScript" in page.locator("noscript p").inner_text()
    assert page.locator("#r0-breakeven table tbody tr").count() > 0
    assert page.locator("#r0-speedup table tbody tr").count() > 0
    for control in page.locator("button, select, input").all():
        assert not control.is_visible()


def test_the_controls_filter_the_rows_of_the_details_too(opened):
    page = opened(full_run())
    page.evaluate("document.querySelectorAll('.details details').forEach(e => { e.open = true; })")

    def ops(section):
        return {one.inner_text() for one in page.locator(f"#r0-{section} tbody th").all() if one.is_visible()}

    assert ops("speedup-2") == {"copy", "matmul", "relu"}
    choose(page, lambda: page.get_by_label("Operation", exact=True).select_option("relu float32"))
    assert ops("speedup-2") == ops("speedup") == ops("breakeven") == {"relu"}
    choose(page, lambda: page.get_by_role("checkbox", name="wgpu:0").uncheck())
    assert "wgpu:0" not in page.locator("#r0-speedup-2 tbody").first.inner_text()
    choose(page, lambda: page.get_by_role("checkbox", name=re.compile("^copied")).uncheck())
    assert "copied" not in page.locator("#r0-speedup-2 tbody").first.inner_text()
    # What is chosen below does not change the answer above.
    assert page.locator(".thresholds tbody tr:visible").count() == page.locator(".thresholds tbody tr").count()


@pytest.mark.parametrize("script", [True, False])
def test_print_unfolds_everything_and_shows_every_column(opened, script):
    page = opened(full_run(), script=script, width=720)
    page.emulate_media(media="print")
    if script:
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    for table in page.locator(".details table").all():
        box = table.bounding_box()
        assert box is not None
        assert box["height"] > 10
        assert box["x"] + box["width"] <= 721
    assert not page.locator("select").first.is_visible()


def test_several_machines_lie_over_each_other_and_unfold_one_by_one(opened):
    machines = [on_machine(suite_run(), i) for i in range(3)]
    page = opened(*machines)
    page.locator("#all-map[data-drawn]").wait_for()
    assert all(f"{name} GPU" in page.locator("#all-map .panel").first.text_content() for name in "ABC")
    assert page.locator("details.one").count() == 3
    assert page.locator("details.one[open]").count() == 0
    page.locator("details.one > summary").nth(2).click()
    page.locator("#r2-charts[data-ready]").wait_for()
    assert page.locator("#r2-chart-time svg").count() == 1
    assert page.locator("#r1-chart-time svg").count() == 0


def test_a_history_is_a_line_over_time(opened):
    runs = [
        msgspec.structs.replace(full_run(), id=f"00000000-0000-4000-8000-00000000000{i}", started_at=f"2026-01-0{i}T00:00:00Z")
        for i in range(1, 4)
    ]  # fmt: skip
    page = opened(*runs)
    (figure,) = page.locator("figure.history").all()
    assert "3 runs" in figure.inner_text()
    figure.locator("svg").wait_for()
    lines = figure.locator("svg .mark-line path")
    assert lines.count() > 3
    assert lines.last.get_attribute("stroke-width") == "3"


def on_machine(run, number):
    """The run as another machine's."""
    machine = msgspec.structs.replace(run.fingerprint.machine, hash=f"{number:012d}")
    return msgspec.structs.replace(
        run, id=f"00000000-0000-4000-8000-00000000000{number}",
        fingerprint=msgspec.structs.replace(run.fingerprint, machine=machine),
    )  # fmt: skip


def test_break_evens_are_marked_at_one_with_their_interval(opened):
    page = opened(run_of(curve({64: 0.25, 256: 0.5, 1024: 3.0, 4096: 9.0})))
    marks = page.evaluate("() => document.querySelectorAll('#r0-chart-speedup svg .mark-rule line').length")
    assert marks >= 2, "the line at 1 and the bar of the interval"
    assert points(page, "speedup") == 4 + 1


def test_the_split_over_cpu_and_gpu_is_a_curve_over_the_share(opened):
    page = opened(hybrid_run())
    sweeps = charted(hybrid_run(), "hybrid")
    assert points(page, "hybrid") == sweeps + 1 > 3, "the sweep, and the diamond of the share chosen"


def test_the_toggles_choose_what_charts_show(opened):
    page = opened(full_run())
    before = points(page, "time")
    choose(page, lambda: page.get_by_role("checkbox", name="cupy:0").uncheck())
    assert 0 < points(page, "time") < before
    assert not page.locator("#r0-chart-speedup-figure").is_visible()
    choose(page, lambda: page.get_by_role("checkbox", name="cupy:0").check())
    assert points(page, "time") == before
    for name in ("waited", "queued", "10 calls", "copied"):
        choose(page, lambda name=name: page.get_by_role("checkbox", name=re.compile(f"^{name}")).uncheck())
    # The CPU's data is at home in every situation: its curve stays.
    assert points(page, "time") == 4
    choose(page, lambda: page.get_by_label("Operation", exact=True).select_option("relu float32"))
    assert page.get_by_role("status").inner_text() == "The charts show relu float32."
    assert points(page, "time") == 3


def test_the_last_choice_wins(opened):
    page = opened(full_run())
    names = page.get_by_label("Operation", exact=True).locator("option").all_inner_texts()[1:]
    page.evaluate(
        """names => { const select = document.querySelector('select[name=series]');
        for (const name of names) { select.value = name; select.dispatchEvent(new Event('change', { bubbles: true })); } }""",
        names,
    )
    page.wait_for_function(
        "count => Number(document.querySelector('[data-ready]').dataset.ready) > count", arg=len(names)
    )
    assert page.get_by_role("status").inner_text() == f"The charts show {names[-1]}."
    assert page.locator("#r0-chart-time svg").count() == 1


def test_everything_is_reached_and_worked_by_keyboard(opened):
    page = opened(full_run())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate(
            """() => { const e = document.activeElement;
            return e === document.body ? '' : [e.tagName, e.name || e.textContent.slice(0, 20), e.value || ''].join(' '); }"""
        )
        seen = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert not name or seen != "none", name
        reached.add(name)
    for name in ("SELECT series ", "INPUT device cupy:0", "INPUT regime copied"):
        assert name in reached
    assert any(name.startswith("BUTTON Save") for name in reached)

    box = page.get_by_role("checkbox", name="cupy:0")
    box.focus()
    choose(page, lambda: page.keyboard.press("Space"))
    assert not box.is_checked()
    assert points(page, "time") == 4


def test_a_screen_reader_finds_its_way(whole):
    page = whole
    for role in ("main", "banner", "contentinfo", "article"):
        assert page.get_by_role(role).count() == 1, role
    for heading in ("Charts over size", "Result file"):
        assert page.get_by_role("heading", name=heading, exact=True).count() == 1
    assert page.get_by_role("form", name="What charts and tables of 2026-01-02T03:04:05Z show").count() == 1
    assert page.get_by_role("group", name="Devices").count() == 1
    assert page.get_by_role("img").count() == page.locator(".chart").count() + 1 == len(CHARTS) + 1, (
        "and the map"
    )
    for chart in page.get_by_role("img").all():
        described = chart.get_attribute("aria-describedby")
        assert len(page.locator(f"#{described}").inner_text()) > 40
        assert chart.get_attribute("aria-label")
    assert page.evaluate(
        "[...document.querySelectorAll('table')].every(t => t.caption && t.caption.textContent)"
    )
    assert page.evaluate("[...document.querySelectorAll('th')].every(t => t.scope)")
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    named = page.evaluate(
        "[...document.querySelectorAll('[aria-labelledby], [aria-describedby], label[for]')].flatMap(e =>"
        " [e.getAttribute('aria-labelledby'), e.getAttribute('aria-describedby'), e.getAttribute('for')].filter(Boolean))"
    )
    assert set(named) <= set(ids)
    assert len([name for name in ids if name.startswith("r0-")]) == len(
        {name for name in ids if name.startswith("r0-")}
    )


def test_axe_finds_nothing_to_complain_about(opened):
    """axe-core's rules: WCAG 2 A and AA with contrasts, and its best practices; in the dark, contrasts alone. Everything
    is unfolded; of each table two rows stay, since the others look like them."""
    from axe_playwright_python.sync_playwright import Axe

    other = msgspec.structs.replace(hybrid_run(), started_at="2026-02-02T00:00:00Z")
    page = opened(full_run(), other)
    page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    page.evaluate("document.querySelectorAll('tbody tr:nth-child(n+3)').forEach(e => e.remove())")

    def complaints(**options):
        found = Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
        return [(rule["id"], rule["help"], rule["nodes"][0]["html"][:200]) for rule in found]

    assert not complaints()
    choose(page, lambda: page.emulate_media(color_scheme="dark"))
    assert not complaints(runOnly=["color-contrast"])


@pytest.mark.parametrize("width", [400, 320])
def test_a_narrow_page_does_not_scroll_sideways_and_keeps_the_op_and_the_device_in_sight(opened, width):
    page = opened(
        full_run(),
        width=width,
        sections=[
            "answer",
            "map",
            "breakeven",
            "speedup",
            "anatomy",
            "roofline",
            "warnings",
            "environment",
            "raw",
        ],
    )
    page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in page.locator(".chart svg").all():
        box = chart.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["width"] > width * 0.6
    box = page.locator("#r0-breakeven .scroll").first
    box.evaluate("e => { e.scrollLeft = 10000; }")
    head = page.locator("#r0-breakeven tbody th").nth(1)
    assert head.inner_text().split() == ["matmul"]
    assert 0 <= head.bounding_box()["x"] <= 40


def test_light_and_dark(whole):
    page = whole

    def looks():
        return page.evaluate(
            """() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
            document.querySelector('#r0-chart-time svg .role-axis-label text').getAttribute('fill')]"""
        )

    light = looks()
    choose(page, lambda: page.emulate_media(color_scheme="dark"))
    dark = looks()
    choose(page, lambda: page.emulate_media(color_scheme="light"))
    assert all(a != b for a, b in zip(light, dark, strict=True))
    assert contrast(*_colours(page, light[:2])) >= 7
    assert contrast(*_colours(page, dark[:2])) >= 7


def _colours(page, texts):
    return [[int(part) for part in text.strip("rgba()").split(",")[:3]] for text in texts]


def contrast(one, other):
    """The contrast ratio of WCAG 2.2, from its formula of relative luminance."""

    def luminance(rgb):
        linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_narrow_page_cuts_no_letter_of_the_map_and_no_long_name_of_an_operation(opened):
    gains = {64: 2.0, 1024: 9.0}
    rows = [row for op in ("multi_head_attention", "add", "ffn") for row in op_rows(op, {WAITED: gains})]
    for device in ("numpy:0", "cupy:0"):
        long = msgspec.structs.replace(
            case("matmul", device=device), params={"n": 64, "k": 1048576, "middle": 268435456}
        )
        rows.append(measured(long, 1e-3))
    page = opened(answer_run(rows), width=400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    beyond = """() => [...document.querySelectorAll('#r0-map svg')].flatMap(svg => {
        const box = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter(text => {
            const at = text.getBoundingClientRect();
            return at.width && (at.left < box.left - 1.5 || at.right > box.right + 1.5);
        }).map(text => text.textContent);
    })"""
    assert page.locator("#r0-map svg").count()
    assert not page.evaluate(beyond)


@pytest.mark.parametrize("names", [HOSTILE[:3], HOSTILE[3:6], HOSTILE[5:]], ids=["tags", "quotes", "letters"])
def test_hostile_names_stay_text(opened, names):
    label, cpu, gpu = names
    devices = (msgspec.structs.replace(CPU, name=cpu), msgspec.structs.replace(GPU, name=gpu, driver=cpu))
    run = msgspec.structs.replace(run_of(curve({64: 0.25, 256: 4.0}), devices=devices), label=label)
    page = opened(run, width=400)
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    shown = page.locator("body").inner_text()
    for name in names:
        assert name[:20].replace("\u202e", "").replace("\u202c", "").replace("\u2066", "").strip() in shown
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    page.locator("#r0-chart-time svg .mark-symbol.role-mark path").last.hover(force=True)
    page.locator("#vg-tooltip-element.visible").wait_for()
    assert page.evaluate("window.pwned") is None
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save").click()
    assert json.loads(Path(saved.value.path()).read_text(encoding="utf-8"))["label"] == label


def test_a_forged_file_is_drawn_as_text(opened):
    """Every free text of the file, device ids among them, is chosen by somebody who wants to break the page."""
    page = opened(hostile_run(list(NAMES), ids=True), width=400)
    assert page.evaluate("window.pwned") is None
    assert page.locator("#r0-chart-time svg").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    for box in page.get_by_role("checkbox").all():
        choose(page, box.uncheck)
    assert page.locator("#r0-chart-time svg").count() == 0


def test_no_script_but_the_pages_own_runs(contexts, tmp_path):
    """The policy itself: a script that found its way in would not run, and nothing could be fetched."""
    page = contexts[True].new_page()
    file = tmp_path / "page.html"
    text = render([full_run()], "html")
    assert "'unsafe-eval'" not in text.partition("<body")[0]
    file.write_text(
        text.replace(
            "</main>", "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'></main>"
        ),
        encoding="utf-8",
    )
    page.goto(file.as_uri())
    page.locator("[data-ready]").wait_for()
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("fetch('data:text/plain,x').then(() => 'fetched', () => 'refused')") == "refused"
    page.close()


def test_the_result_comes_back_byte_for_byte(whole):
    run = full_run()
    with whole.expect_download() as saved:
        whole.get_by_role("button", name="Save").click()
    assert Path(saved.value.path()).read_bytes() == store.dumps(run)
    assert saved.value.suggested_filename == store.result_name(run)


def test_a_browser_that_lacks_something_says_so(contexts, tmp_path):
    page = contexts[True].new_page()
    page.add_init_script("delete window.DecompressionStream")
    file = tmp_path / "page.html"
    file.write_text(render([full_run()], "html"), encoding="utf-8")
    page.goto(file.as_uri())
    status = page.get_by_role("status")
    status.filter(has_text="could not be drawn").wait_for()
    assert "DecompressionStream" in status.inner_text()
    assert "tables below" in status.inner_text()
    page.close()


def test_other_runs_have_pages_too(opened):
    """Two runs below each other; a machine without a GPU; a software adapter alone; nothing but a failure."""
    page = opened(full_run(), msgspec.structs.replace(cpu_run(), id="00000000-0000-4000-8000-000000000002"))
    assert page.get_by_role("article").count() == 3, "both, and what they say together"
    assert page.locator("#r1-chart-time svg").count() == 1
    assert page.locator("#r1-chart-speedup").count() == 0
    page = opened(software_run())
    assert page.locator("#r0-chart-time svg").count() == 1
    page = opened(run_of([measured(case(n=64), 1e-5)]))
    assert page.locator("#r0-chart-time svg").count() == 1
    page = opened(run_of([]))
    assert page.locator(".chart").count() == 0
