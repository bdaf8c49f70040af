"""Charts: the rows hold the numbers of the analysis, the specs compile, the pictures are drawn from them."""

import itertools
import re
import subprocess
import sys
from xml.etree import ElementTree

import altair
import pytest

from gpubench.analysis.hybrid import hybrids
from gpubench.base.errors import InputError
from gpubench.base.installation import install_command, locate
from gpubench.base.plugins.sections import usual
from gpubench.report import plots
from gpubench.report.charts import COLORS, CPU_COLOR, GPU_COLOR, theme
from gpubench.report.layout import RenderOptions
from gpubench.report.plots import chart_set
from gpubench.result.store import save
from tests.unit.report.builders import curve, run_of
from tests.unit.report.samples import analysed, cpu_run, full_run, hybrid_run, software_run

RATIOS = {64: 0.25, 256: 0.5, 1024: 4.0, 4096: 9.0}
SVG = "{http://www.w3.org/2000/svg}"


def rising_run():
    return run_of(curve(RATIOS))


def charts(make, sections=None):
    found = chart_set(analysed(make)[0], RenderOptions(sections=sections or usual()))
    return found, {chart.id: chart for chart in found.charts}


def rows_of(chart):
    return [row for ours in chart.rows.values() for row in ours]


def test_the_fastest_implementation_of_every_case_is_a_point_of_the_time_chart():
    rows, fastest = rows_of(charts(full_run)[1]["time"]), {}
    for row in analysed(full_run)[0].cases:
        if row.time and row.case.group != "overhead" and not row.case.variant:
            key = (row.case.workload, row.case.regime_id, row.case.device_id)
            fastest[key] = min(fastest.get(key, row.time.estimate), row.time.estimate)
    assert sorted(row["value"] for row in rows) == sorted(
        float(f"{seconds:.5g}") for seconds in fastest.values()
    )
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)


def test_speedups_share_their_baseline_and_break_evens_stand_at_one():
    found, by_id = charts(rising_run)
    (analysis_row,) = analysed(rising_run)[0].break_even
    assert found.chosen == "matmul float32"
    rows, (mark,) = (getattr(by_id["speedup"], name)["matmul float32"] for name in ("rows", "marks"))
    assert [row["value"] for row in rows] == pytest.approx(list(RATIOS.values()))
    assert (mark["n"], mark["one"]) == (analysis_row.n, 1)
    assert mark["low"] <= mark["n"] <= mark["high"]


def test_the_split_is_swept_from_the_cpu_alone_to_the_gpu_alone():
    split = max(hybrids(analysed(hybrid_run)[0]), key=lambda row: row.case.case.n)
    chart = charts(hybrid_run)[1]["hybrid"]
    assert {0.0, 1.0, split.gpu_share} <= {row["x"] for row in rows_of(chart)}
    mark = next(row for ours in chart.marks.values() for row in ours)
    assert mark["better"] == pytest.approx(mark["value"] * split.gain, rel=1e-3)


def empty_run():
    return run_of([])


def test_sections_choose_charts():
    chosen = [
        set(charts(make, only)[1])
        for make, only in ((full_run, ("roofline",)), (empty_run, None), (cpu_run, None))
    ]
    assert chosen == [{"roofline"}, set(), {"time", "roofline"}]


@pytest.mark.slow  # all at once, since what draws them takes a second to start
def test_every_spec_is_valid_and_draws_the_sides_the_machine_and_the_date():
    """Vega-Lite's schema allows the spec of every picture, which holds a mark for each row."""
    analyses, specs = analysed(full_run, software_run, hybrid_run), []
    for analysis in analyses:
        for chart in chart_set(analysis, RenderOptions()).charts:
            altair.Root.validate(chart.spec)
            specs += [(chart.id, plots.draw_spec(chart, name)) for name in chart.rows]
    drawn = plots.plots(analyses, "svg")
    for (chart_id, spec), (name, svg) in zip(specs, [*drawn.items()][-len(specs) :], strict=True):
        picture = ElementTree.fromstring(svg)
        assert re.match(rf"(\d-)?{chart_id}-", name)
        assert len(picture.findall(f".//{SVG}path")) >= len(spec["datasets"]["rows"]), name
    for name, content in drawn.items():
        said = "".join(ElementTree.fromstring(content).itertext())
        words = ("NumPy", "OpenBLAS", "2026-01-02", "Test CPU, 2 CPUs", "gpubench 0.")
        assert name[0].isdigit() or name == "machines.svg" or all(word in said for word in words), name


def test_a_spec_is_the_same_each_time_and_holds_no_data_of_its_own_and_a_device_keeps_its_accent():
    (one, first), (other, second) = charts(full_run), charts(full_run)
    names = [device.id for device in one.devices]
    assert (one, names[0]) == (other, "numpy:0")
    for name, chart in first.items():
        assert chart.spec == second[name].spec
        assert not {"datasets"} & chart.spec.keys()
        assert "matmul" not in str(chart.spec)
        domains = re.findall(r"'color': {'field': 'device'.*?'domain': (\[.*?\])", str(chart.spec))
        assert {*domains} <= {str(names)}


def _luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("background", ["#ffffff", "#14181d"])
def test_accents_stand_out_from_the_background(background):
    """A contrast of 3 to 1, as WCAG 2.2 asks of what is drawn."""
    for color in COLORS:
        high, low = sorted((_luminance(color), _luminance(background)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3, color


def test_the_cpu_is_orange_and_the_gpu_blue_in_charts_and_map():
    found = {device.id: COLORS[device.color] for device in charts(full_run)[0].devices if device.id != "wgpu:0"}
    assert found == {"numpy:0": CPU_COLOR, "cupy:0": GPU_COLOR}
    assert [theme(dark=dark)["range"]["diverging"][::2] for dark in (False, True)] == [
        [CPU_COLOR, GPU_COLOR]
    ] * 2


@pytest.mark.slow
def test_pictures_of_both_formats_and_one_that_holds_the_map_and_all_charts():
    rising = analysed(rising_run)
    pictures = plots.plots(rising, "svg")
    assert {"time-matmul-float32.svg", "speedup-matmul-float32.svg", "roofline-float32.svg"} <= set(pictures)
    again = plots.plots(rising * 2, "svg", sections=["speedup"])
    first = {name: content for name, content in again.items() if not name.startswith("2-")}
    assert "2-speedup-matmul-float32.svg" in again
    assert {}.items() < first.items() < pictures.items(), "the same bytes again"
    (picture, *_) = plots.plots(rising, "png", sections=["roofline"]).values()
    assert picture.startswith(b"\x89PNG")
    whole = ElementTree.fromstring(plots.picture(rising, "svg"))
    inner = whole.findall(f"{SVG}svg")
    assert len(inner) == len({name.split("-")[0] for name in pictures})
    assert "queued on the GPU" in "".join(inner[0].itertext())
    boxes = [[float(one.get(name)) for name in ("x", "y", "width", "height")] for one in inner]
    assert float(whole.get("width")) == max(x + width for x, _, width, _ in boxes) <= plots.MOST_WIDTH
    assert float(whole.get("height")) == max(y + height for _, y, _, height in boxes)
    for before, (x, y, _width, _) in itertools.pairwise(boxes):
        beside = x == before[0] + before[2] and y == before[1]
        assert beside or (x == 0 and y >= before[1] + before[3]), "no picture covers another"
    names = [one.get("id") for one in whole.iter() if one.get("id")]
    assert len(names) == len(set(names)), "no chart is clipped by another's frame"
    with pytest.raises(InputError, match="nothing to draw"):
        plots.picture(rising, "svg", sections=["warnings"])


@pytest.fixture
def folder(tmp_path):
    save(rising_run(), tmp_path / "run.json")
    return tmp_path


def without(blocked, *arguments, cwd):
    """The program, where the modules `blocked` are not installed."""
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\nfrom gpubench.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd, capture_output=True, text=True, check=False, timeout=300, env={"HOME": str(cwd), "PATH": ""},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("blocked", "what", "option"),
    [
        (["vl_convert"], ["--format", "png"], "--format png"),
        (["altair", "vl_convert"], ["--plots", "pictures"], "--plots"),
    ],
)
def test_the_command_without_the_libraries_says_how_to_get_them(folder, blocked, what, option):
    done = without(blocked, "report", "run.json", *what, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error: {option}: charts cannot be drawn here", f"  why: what draws is not installed: no {' and no '.join(blocked)}",
        f"  fix: {locate(install_command())}",
    ]  # fmt: skip


@pytest.mark.parametrize("command", [["report", "run.json"], ["run", "--ops", "add"]])
def test_unknown_picture_formats_are_refused_before_anything_happens(in_process, folder, command):
    done = in_process(*command, "--plots", "pictures", "--plot-format", "svgz")
    assert (done.returncode, "svg" in done.stderr.splitlines()[-1]) == (2, True)
    assert not (folder / "pictures").exists()


@pytest.mark.slow
def test_run_writes_the_page_and_the_pictures_that_report_writes(gpubench, tmp_path):
    what = "--ops add --sizes 1k,4k --devices fake:cpu --quick --min-samples 3 --max-time 20ms"
    where = "-o page.html -o all.svg -o result.json --plots pictures"
    done = gpubench("run", *what.split(), *where.split())
    assert done.returncode == 0, done.stderr
    assert "wrote 2 charts to pictures" in done.stderr
    assert gpubench("report", "result.json", "-o", "again.html").returncode == 0
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "page.html").read_bytes()
    assert gpubench("report", "result.json", "--format", "svg").stdout == (tmp_path / "all.svg").read_text()
