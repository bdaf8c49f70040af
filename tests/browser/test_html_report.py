"""The HTML report in a browser without a network, by mouse and by keyboard; terminal, page and notebook agree."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpubench import report
from gpubench.analysis.analyse import analyse
from gpubench.api import Result
from gpubench.base.streams import printable
from gpubench.report import render
from gpubench.report.layout import RenderOptions
from gpubench.report.plots import chart_set
from gpubench.report.sections.answer import answer_sentences
from gpubench.result import store
from gpubench.result.run import fingerprint
from tests.unit.report.answer_runs import (
    ALWAYS,
    VECTOR,
    WAITED,
    WEBGPU,
    answer_run,
    no_gpu_run,
    one_op_run,
    op_rows,
    rising,
    suite_run,
)
from tests.unit.report.builders import CPU, GPU, run_of
from tests.unit.report.hostile import NAMES, hostile_run
from tests.unit.report.samples import cpu_run, full_run, hybrid_run, software_run

pytestmark = pytest.mark.chromium

CHARTS = {"time", "speedup", "roofline"}


def points(page, name):
    return page.locator(f"#r0-chart-{name} svg .mark-symbol.role-mark path").count()


def names(page, name):
    return set(page.locator(f"#r0-chart-{name} svg .mark-text.role-mark text").all_text_contents())


def charted(run, name):
    """How many points the chart begins with."""
    charts = chart_set(analyse(run), RenderOptions())
    return next(len(chart.rows[charts.chosen]) for chart in charts.charts if chart.id == name)


def choose(page, act):
    """Do something to the page and wait until everything is drawn anew."""
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


@pytest.fixture(scope="module")
def suite(open_pages):
    """The page of fourteen ops; who changes its look or the order of its lanes changes it back, or comes last."""
    with open_pages() as opened:
        yield opened(suite_run())


@pytest.fixture(scope="module")
def still(open_pages):
    """The same without scripts."""
    with open_pages() as opened:
        yield opened(suite_run(), script=False)


def test_every_chart_is_drawn_without_a_network(whole):
    """The best of both sides first, named at the ends of their lines; on request every device and situation."""
    page = whole
    page.locator("[id$=group-roofline] > summary").click()
    page.locator("#r0-chart-roofline svg").wait_for()
    for name in CHARTS:
        assert page.locator(f"#r0-chart-{name} svg").count() == 1, name
        assert page.locator(f"#r0-chart-{name} svg path").count() > 3, name
    assert names(page, "time") == {"CPU", "CuPy", "CuPy copied"}
    assert names(page, "speedup") == {"CuPy", "CuPy copied"}
    for chart in page.locator(".figures .chart svg").all():  # in its real size, whatever appeared beside it
        assert chart.bounding_box()["width"] == float(chart.get_attribute("width"))
    page.locator("[id$=group-roofline] > summary").click()


@pytest.mark.parametrize(
    ("run", "said", "panels"), [(suite_run, "wins all 14", 2), (no_gpu_run, "No GPU here", 0)]
)
def test_the_page_begins_with_sentence_tiles_and_map(opened, suite, run, said, panels):
    page = suite if panels else opened(run())
    sentence = page.locator(".sentence").first
    assert said in sentence.inner_text()
    assert sentence.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") >= 20
    assert page.locator(".tiles li").count() == (3 if panels else 0)
    assert page.locator(".lanes svg").count() == panels
    places = [".sentence", ".tiles", ".steps", ".lanes", ".thresholds table", ".charts", ".details"]
    tops = [page.locator(place).first.bounding_box()["y"] for place in places if page.locator(place).count()]
    assert tops == sorted(tops)
    assert not page.locator(".details details[open]").count()
    assert not page.evaluate(
        "[...document.querySelectorAll('.details details')].some(e => !e.querySelector('section'))"
    )


def test_a_lane_stands_beside_its_row(suite):
    """In the order of the thresholds, and after a click on a heading in that of its column."""
    page = suite

    def offsets():
        return page.evaluate(
            """() => [...document.querySelectorAll('.lanes')].flatMap(table => {
            const marks = [...table.querySelectorAll('svg .mark-rect path')].map(e => e.getBoundingClientRect());
            return [...table.tBodies[0].rows].map(row => {
                const box = row.getBoundingClientRect(), middle = (box.top + box.bottom) / 2;
                return Math.min(...marks.filter(m => m.height).map(m => Math.abs((m.top + m.bottom) / 2 - middle)));
            });
        })"""
        )

    assert max(offsets()) < 3
    first = page.locator(".lanes").first
    ops = first.locator("tbody th").all_inner_texts()

    def sort(heading):
        drawn = page.locator("[data-lanes]").first.get_attribute("data-drawn")
        first.get_by_role("button", name=heading).click()
        page.wait_for_function(
            "drawn => document.querySelector('[data-lanes]').dataset.drawn !== drawn", arg=drawn
        )

    sort("op")
    assert first.locator("tbody th").all_inner_texts() == sorted(ops) != ops
    assert max(offsets()) < 3
    sort("pays from")
    assert first.locator("tbody th").all_inner_texts() == ops


def two_backends():
    """WebGPU wins less than CuPy, and later."""
    runs = [op_rows(op, {WAITED: rising(VECTOR, at), ALWAYS: rising(VECTOR, 40 * at)}, device=device, cpu=not place)
            for place, (device, at) in enumerate((("cupy:0", 3e3), ("wgpu:0", 3e6))) for op in ("add", "mul", "sub", "tanh")]  # fmt: skip
    return answer_run([outcome for rows in runs for outcome in rows], devices=(CPU, GPU, WEBGPU))


def answer_words(page):
    places = (".sides", ".sentence", ".tiles", ".lanes tbody")
    return [
        [text for one in page.locator(place).all() if one.is_visible() for text in [one.inner_text()]]
        for place in places
    ]


def test_a_menu_changes_everything_that_depends_on_it(opened):
    page = opened(two_backends())
    before = answer_words(page)
    choose(page, lambda: page.get_by_label("GPU through").select_option("WebGPU"))
    after = answer_words(page)
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert "CuPy" not in str(after)
    assert page.locator(".lanes svg:visible").count() == 2
    assert names(page, "time") == {"CPU", "WebGPU", "WebGPU copied"}
    choose(page, lambda: page.get_by_label("Data").select_option("copied at every call"))
    assert (page.locator(".lanes:visible").count(), page.locator(".tiles li:visible").count()) == (1, 2)
    assert "With data on the GPU" not in page.locator(".sentence:visible").inner_text()
    assert names(page, "time") == {"CPU", "WebGPU copied"}


def test_an_address_opens_what_its_sender_saw(opened):
    page = opened(two_backends())
    choose(page, lambda: page.get_by_label("GPU through").select_option("WebGPU"))
    choose(page, lambda: page.locator(".lanes:visible a", has_text="sub").first.click())
    choose(page, lambda: page.get_by_label("Data").select_option("copied at every call"))
    address = page.url
    assert address.endswith("#sub&gpu=wgpu&data=copied")
    words = answer_words(page)
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_function(
        "() => Number((document.querySelector('[data-ready]') || {dataset: {}}).dataset.ready) > 1"
    )
    assert (answer_words(page), page.get_by_label("Operation").input_value()) == (words, "sub float32")
    assert page.locator(".lanes tr.chosen:visible").inner_text().startswith("sub")
    # A click on a lane itself, too.
    box = page.locator(".lanes:visible .lane").bounding_box()
    choose(page, lambda: page.mouse.click(box["x"] + 40, box["y"] + 15))
    assert page.get_by_label("Operation").input_value() == "add float32"


def test_without_script_map_and_numbers_are_there_and_nothing_is_offered_that_would_do_nothing(still):
    page = still
    assert "JavaScript" in page.locator("noscript p").inner_text()
    lines = page.locator(".lanes pre").first.inner_text().splitlines()
    assert sum("▆" in line for line in lines) > 5
    assert page.locator(".lanes tbody tr").count() == 28
    assert side(page.locator(".lanes pre .gpu").first.evaluate("e => getComputedStyle(e).color")) == "gpu"
    assert page.locator("#r0-breakeven table tbody tr").count() > 0
    for control in page.locator("button, select, input, .lanes a").all():
        assert not control.is_visible()


@pytest.mark.parametrize("script", [True, False])
def test_on_paper_the_first_page_is_the_answer_then_come_thresholds_and_problems(suite, still, script):
    page = suite if script else still
    page.emulate_media(media="print")
    assert not page.locator("select").first.is_visible()
    sheets = page.evaluate("document.querySelectorAll('.details > details').length")
    shown = [one.inner_text() for one in page.locator(".details > details:visible > summary").all()]
    assert sheets > len(shown)
    assert shown[0] == "Break-evens"
    page.set_viewport_size({"width": 703, "height": 1000})  # A4 without its margins
    page.evaluate("dispatchEvent(new Event('beforeprint'))") if script else None
    for lanes in page.locator(".lanes .picture").all():
        assert lanes.locator("svg").bounding_box()["width"] <= lanes.bounding_box()["width"] + 1
    answer = page.locator(".answer").bounding_box()
    assert answer["y"] + answer["height"] < 1040
    for cell in page.locator("#r0-breakeven td:visible").all()[:40]:
        assert cell.evaluate("e => e.textContent.length < 4 || e.getBoundingClientRect().width > 30")
    assert page.evaluate("document.documentElement.scrollWidth") <= 704


def test_several_machines_lie_over_each_other_and_unfold_one_by_one(opened):
    page = opened(*[on_machine(one_op_run(), i) for i in range(3)])
    page.locator("#all-map[data-drawn]").wait_for()
    assert all(f"{name} GPU" in page.locator("#all-map .picture").first.text_content() for name in "ABC")
    assert (page.locator("details.one").count(), page.locator("details.one[open]").count()) == (3, 0)
    page.locator("details.one > summary").nth(2).click()
    page.locator("[data-run=r2-][data-ready]").wait_for()
    assert (page.locator("#r2-chart-time svg").count(), page.locator("#r1-chart-time svg").count()) == (1, 0)
    address = page.url
    page.goto(f"{address}#%E0")  # a damaged address is no error
    page.goto(f"{address}#add&run=1")  # an address unfolds the run that it is about
    page.locator("#r1-chart-time svg").wait_for()


def test_a_history_is_a_line_over_time(opened):
    runs = [
        replace(full_run(), id=f"00000000-0000-4000-8000-00000000000{i}", started_at=f"2026-01-0{i}T00:00:00Z")
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
    machine = fingerprint(run.fingerprint.machine.fields | {"cpu": f"CPU {number}"})
    return replace(
        run, id=f"00000000-0000-4000-8000-00000000000{number}",
        fingerprint=replace(run.fingerprint, machine=machine),
    )  # fmt: skip


def test_the_split_over_cpu_and_gpu_is_a_curve_over_the_share(opened):
    page = opened(hybrid_run())
    sweeps = charted(hybrid_run(), "hybrid")
    assert points(page, "hybrid") == sweeps + 1 > 3, "the sweep, and the diamond of the share chosen"


def test_a_column_is_sorted_by_what_its_texts_mean(suite):
    """A rate has decimal units, a size binary ones; a matrix has side² elements; a word may be a number, too."""
    for texts in (
        ["-3%", "+2%", "12%"], ["950 GB/s", "1.00 TB/s", "1.02 PFLOP/s"], ["1023 K", "1 M"], ["900 us lib", "1.52 ms"],
        ["CPU 21x", "about equal [0.9, 1.1]", "GPU ~1.6x ?"], ["all sizes", "16-90 K", "~982²", "1000^2", "> 1 M", "no size"],
    ):  # fmt: skip
        shown = suite.evaluate(
            """texts => {
            const {tHead, tBodies: [body]} = document.querySelector(".details table"), before = [...body.rows];
            body.replaceChildren(...texts.map(text => {
                const row = before[0].cloneNode(true);
                row.cells[1].textContent = text;
                return row;
            }));
            const heading = tHead.rows[tHead.rows.length - 1].cells[1];
            heading.removeAttribute("aria-sort");
            heading.querySelector("button").click();
            const sorted = [...body.rows].map(row => row.cells[1].textContent);
            body.replaceChildren(...before);
            return sorted;
        }""",
            texts[::-1],
        )
        assert shown == texts


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
    for name in (
        "SELECT series", "INPUT every on", "A matmul", "SELECT data", "BUTTON pays from", "BUTTON Save",
    ):  # fmt: skip
        assert any(other.startswith(name) for other in reached), name
    page.locator(".lanes a", has_text="relu").first.focus()
    choose(page, lambda: page.keyboard.press("Enter"))
    assert page.get_by_role("status").inner_text() == "The charts show relu float32."


def test_axe_finds_nothing_to_complain_about(opened):
    """axe-core's rules: WCAG 2 A and AA with contrasts, and its best practices; in the dark, contrasts alone. Everything
    is unfolded; of each table two rows stay, since the others look like them."""
    from axe_playwright_python.sync_playwright import Axe

    other = replace(hybrid_run(), started_at="2026-02-02T00:00:00Z")
    page = opened(full_run(), other)
    page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    page.evaluate("document.querySelectorAll('tbody tr:nth-child(n+3)').forEach(e => e.remove())")

    def complaints(**options):
        found = Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
        return [(rule["id"], rule["help"], rule["nodes"][0]["html"][:200]) for rule in found]

    assert not complaints()
    choose(page, lambda: page.emulate_media(color_scheme="dark"))
    page.wait_for_timeout(300)
    assert not complaints(runOnly=["color-contrast"])


def test_a_narrow_page_breaks_no_word_of_the_answer(opened):
    """Op, threshold and gain are in sight, and a long name goes on behind one of its underscores."""
    gains = {64: 2.0, 1024: 9.0, 65536: 40.0}
    ops = ("multi_head_attention", "softmax_cross_entropy", "add", "matmul", "sigmoid")
    rows = [
        row for op in ops for row in op_rows(op, {WAITED: gains, ALWAYS: {n: r / 8 for n, r in gains.items()}})
    ]
    page = opened(answer_run(rows), width=360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    words = page.evaluate(
        """() => [...document.querySelectorAll('.lanes th, .lanes td:not(.lane)')].flatMap(cell => {
        const box = cell.getBoundingClientRect();
        const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), cuts = [];
        for (let text; (text = texts.nextNode());) for (const word of text.data.matchAll(/\\S+/g)) {
            const range = new Range();
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            const at = range.getBoundingClientRect();
            if (range.getClientRects().length > 1 || at.left < box.left - 1 || at.right > box.right + 1) cuts.push(word[0]);
        }
        return cuts;
    })"""
    )
    assert not words
    assert page.locator(".lane").first.bounding_box()["width"] > 60


def test_every_text_of_a_file_stays_text_and_the_file_comes_back_byte_for_byte(opened):
    """Device ids among them, chosen by somebody who wants to break the page: a dialog would be a complaint."""
    run = hostile_run(list(NAMES), ids=True)
    page = opened(run, width=400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    shown = page.locator("body").inner_text()
    assert printable(run.label) in shown
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    page.locator("#r0-chart-time svg .mark-symbol.role-mark path").last.hover(force=True)
    page.locator("#vg-tooltip-element.visible").wait_for()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save").click()
    assert Path(saved.value.path()).read_bytes() == store.dumps(run)
    assert saved.value.suggested_filename == store.result_name(run)


def test_no_script_but_the_pages_own_runs(contexts, tmp_path):
    """The policy itself: a script that found its way in would not run, and nothing could be fetched."""
    page = contexts[True].new_page()
    file = tmp_path / "page.html"
    text = render([full_run()], "html")
    assert "'unsafe-eval'" not in text.partition("<body")[0]
    file.write_text(
        text.replace("</main>", "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'></main>"),
        encoding="utf-8",
    )  # fmt: skip
    page.goto(file.as_uri())
    page.locator("[data-ready]").wait_for()
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("fetch('data:text/plain,x').then(() => 'fetched', () => 'refused')") == "refused"
    page.close()


def test_a_browser_that_lacks_something_says_so(contexts, tmp_path):
    page = contexts[True].new_page()
    page.add_init_script("delete window.DecompressionStream")
    file = tmp_path / "page.html"
    file.write_text(render([full_run()], "html"), encoding="utf-8")
    page.goto(file.as_uri())
    status = page.get_by_role("status")
    status.filter(has_text="could not be drawn").wait_for()
    assert "DecompressionStream" in status.inner_text()
    assert "The tables hold" in status.inner_text()
    page.close()


def test_other_runs_have_pages_too(opened):
    """Runs below each other: of a machine without a GPU, of a software adapter alone, of nothing."""
    others = (cpu_run(), software_run(), run_of([]))
    page = opened(full_run(), *(on_machine(run, i) for i, run in enumerate(others, 2)))
    assert page.get_by_role("article").count() == 5, "each, and what they say together"
    for summary in page.locator("details.one > summary").all():
        summary.click()
    page.locator("[data-run=r2-][data-ready]").wait_for()
    charts = [page.locator(f"#r{i}-chart-{name} svg").count() for i in (1, 2) for name in ("time", "speedup")]
    assert (charts, page.locator("[id^=r3-chart]").count()) == ([1, 0, 1, 0], 0)


def test_the_last_choice_wins(whole):
    page = whole
    names = page.get_by_label("Operation").locator("option").all_inner_texts()
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


def test_every_device_and_situation_is_drawn_on_request(whole):
    page = whole
    choose(page, lambda: page.get_by_label("Operation").select_option("matmul float32"))
    few = points(page, "time")
    choose(page, lambda: page.get_by_label("every device and situation").check())
    assert points(page, "time") == charted(full_run(), "time") > few
    assert not names(page, "time")
    choose(page, lambda: page.get_by_label("Operation").select_option("relu float32"))
    assert page.get_by_role("status").inner_text() == "The charts show relu float32."


# ---------------------------------------------------------------- terminal, page and notebook say the same, in the same colours
TERMINAL = {"38;5;75": "gpu", "38;5;208": "cpu"}  # blue and orange of 256 colours


def side(colour):
    red, _, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return "gpu" if blue > red else "cpu"


def words(text):
    return " ".join(text.split())


def shown(page):
    """Sentence, gains, and the side that each gain has the colour of."""
    cells = page.locator(".lanes td.gpu, .lanes td.cpu").all()
    colours = {cell.inner_text(): side(cell.evaluate("e => getComputedStyle(e).color")) for cell in cells}
    sentence = words(page.locator(".sentence:visible").first.inner_text())
    return sentence, colours, sorted(cell.inner_text() for cell in cells)


def test_terminal_page_and_notebook_say_the_same_in_the_same_colours(opened, contexts, tmp_path):
    run = suite_run()
    (analysis,) = report.analyse_runs([run])
    sentence = words(" ".join(answer_sentences(analysis)))
    terminal = report.screen([analysis], "table", RenderOptions(color=True), saved=(), height=40)
    painted = re.findall(r"\x1b\[([\d;]+)m((?:GPU|CPU) ~?[\d.]+x)", terminal)
    plain = words(re.sub(r"\x1b\[[\d;]*m", "", terminal))
    assert sentence in plain
    colours = {text: TERMINAL[code] for code, text in painted}
    numbers = sorted(text for _, text in painted)
    assert len(numbers) == 28
    assert shown(opened(run)) == (sentence, colours, numbers)

    notebook = tmp_path / "notebook.html"
    notebook.write_text(
        f"<!DOCTYPE html><meta charset=utf-8><body>{Result(run)._repr_html_()}</body>", encoding="utf-8"
    )
    for script in (True, False):
        page = contexts[script].new_page()
        page.goto(notebook.as_uri())
        page.emulate_media(color_scheme="dark")
        label = page.locator(".lane svg text").first
        assert label.evaluate("e => getComputedStyle(e).fill") == "rgb(169, 177, 189)"
        page.emulate_media(color_scheme="light")
        assert shown(page) == (sentence, colours, numbers)
        page.close()
