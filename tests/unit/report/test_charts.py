"""Charts: the rows hold the numbers of the analysis, the specs compile, the pictures are drawn from them."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import altair
import pytest

from gpubench import report
from gpubench.analysis.analyse import analyse
from gpubench.analysis.hybrid import hybrids
from gpubench.base.errors import InputError
from gpubench.base.installation import install_command, locate
from gpubench.base.plugins.sections import usual
from gpubench.report import plots
from gpubench.report.charts import COLORS, CPU_COLOR, GPU_COLOR, theme
from gpubench.report.contents import chart_set
from gpubench.report.layout import RenderOptions
from gpubench.result.store import save
from tests.unit.report.builders import curve, run_of
from tests.unit.report.samples import cpu_run, full_run, hybrid_run, software_run

RISING = {64: 0.25, 256: 0.5, 1024: 4.0, 4096: 9.0}
SVG = "{http://www.w3.org/2000/svg}"


def charts(run, sections=None):
    found = chart_set(analyse(run), RenderOptions(sections=sections or usual()))
    return found, {chart.id: chart for chart in found.charts}


def test_the_fastest_implementation_of_every_case_is_a_point_of_the_time_chart():
    analysis = analyse(full_run())
    _, by_id = charts(full_run())
    rows = [row for ours in by_id["time"].rows.values() for row in ours]
    timed = [
        row for row in analysis.cases if row.time and row.case.group != "overhead" and not row.case.variant
    ]
    fastest = {}
    for row in timed:
        key = (row.case.workload, row.case.regime_id, row.case.device_id)
        fastest[key] = min(fastest.get(key, row.time.estimate), row.time.estimate)
    assert sorted(row["value"] for row in rows) == sorted(
        float(f"{seconds:.5g}") for seconds in fastest.values()
    )
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)


def test_speedups_share_their_baseline_and_break_evens_stand_at_one():
    found, by_id = charts(run_of(curve(RISING)))
    (analysis_row,) = analyse(run_of(curve(RISING))).break_even
    assert found.chosen == "matmul float32"
    rows = by_id["speedup"].rows["matmul float32"]
    assert [row["value"] for row in rows] == pytest.approx(list(RISING.values()))
    (mark,) = by_id["speedup"].marks["matmul float32"]
    assert (mark["n"], mark["one"]) == (analysis_row.n, 1)
    assert mark["low"] <= mark["n"] <= mark["high"]


def test_the_split_is_swept_from_the_cpu_alone_to_the_gpu_alone():
    split = max(hybrids(analyse(hybrid_run())), key=lambda row: row.case.case.n)
    _, by_id = charts(hybrid_run())
    rows = [row for ours in by_id["hybrid"].rows.values() for row in ours]
    assert {0.0, 1.0, split.fraction} <= {row["x"] for row in rows}
    mark = next(row for ours in by_id["hybrid"].marks.values() for row in ours)
    assert mark["better"] == pytest.approx(mark["value"] * split.gain, rel=1e-3)


def test_sections_choose_charts():
    _, by_id = charts(full_run(), ("roofline",))
    assert set(by_id) == {"roofline"}
    assert charts(run_of([]))[0].charts == ()
    assert set(charts(cpu_run())[1]) == {"time", "roofline"}


def allowed_and_drawn(*runs):
    """Every picture of these runs by its name. Vega-Lite's schema allows its spec, and it holds a mark for each row."""
    analyses, specs = report.analyse_runs(list(runs)), []
    for analysis in analyses:
        found = chart_set(analysis, RenderOptions())
        for chart in found.charts:
            altair.Root.validate(chart.spec)
            specs += [(chart.id, plots.draw_spec(chart, name)) for name in chart.rows]
    drawn = plots.plots(analyses, "svg")
    for (chart_id, spec), (name, svg) in zip(specs, [*drawn.items()][-len(specs) :], strict=True):
        assert re.match(rf"(\d-)?{chart_id}-", name)
        assert len(ElementTree.fromstring(svg).findall(f".//{SVG}path")) >= len(spec["datasets"]["rows"]), name
    return drawn


def test_every_spec_is_valid_and_draws():
    allowed_and_drawn(cpu_run())


@pytest.mark.slow  # all at once, since what draws them takes a second to start
def test_a_picture_names_the_sides_the_machine_and_the_date():
    for name, content in allowed_and_drawn(full_run(), software_run(), hybrid_run()).items():
        said = "".join(ElementTree.fromstring(content).itertext())
        if name[0].isdigit() or name == "machines.svg":
            continue
        for word in ("Test GPU", "NumPy", "OpenBLAS", "2026-01-02", "Test CPU, 2 CPUs", "gpubench 0."):
            assert word in said, (name, word)


def test_a_spec_is_the_same_each_time_and_holds_no_data_of_its_own():
    (one, first), (other, second) = charts(full_run()), charts(full_run())
    assert one == other
    for name, chart in first.items():
        assert chart.spec == second[name].spec
        assert "datasets" not in chart.spec
        assert "matmul" not in str(chart.spec)


def test_a_device_keeps_its_accent_in_all_charts():
    found, by_id = charts(full_run())
    names = [device.id for device in found.devices]
    assert names[0] == "numpy:0"
    for chart in by_id.values():
        for domain in re.findall(r"'color': {'field': 'device'.*?'domain': (\[.*?\])", str(chart.spec)):
            assert domain == str(names)


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
    found, _ = charts(full_run())
    assert {device.id: COLORS[device.color] for device in found.devices if device.id != "wgpu:0"} == {
        "numpy:0": CPU_COLOR, "cupy:0": GPU_COLOR,
    }  # fmt: skip
    assert (
        theme()["range"]["diverging"][::2]
        == theme(dark=True)["range"]["diverging"][::2]
        == [CPU_COLOR, GPU_COLOR]
    )


@pytest.fixture(scope="module")
def rising():
    return report.analyse_runs([run_of(curve(RISING))])


@pytest.fixture(scope="module")
def pictures(rising):
    """Every picture of it by its name."""
    return plots.plots(rising, "svg")


@pytest.mark.slow
def test_pictures_of_both_formats(rising, pictures):
    assert {"time-matmul-float32.svg", "speedup-matmul-float32.svg", "roofline-float32.svg"} <= set(pictures)
    again = plots.plots(rising * 2, "svg", sections=["speedup"])
    assert "2-speedup-matmul-float32.svg" in again
    first = {name: content for name, content in again.items() if not name.startswith("2-")}
    assert first
    assert first.items() < pictures.items(), "the same bytes again"
    (picture, *_) = plots.plots(rising, "png", sections=["roofline"]).values()
    assert picture.startswith(b"\x89PNG")


@pytest.mark.slow
def test_one_picture_holds_the_map_and_below_it_all_charts(rising, pictures):
    """The tests of the command below draw it twice, with the same bytes, and as PNG."""
    whole = ElementTree.fromstring(plots.picture(rising, "svg"))
    inner = whole.findall(f"{SVG}svg")
    assert len(inner) == len({name.split("-")[0] for name in pictures})
    assert "queued on the GPU" in "".join(inner[0].itertext())
    boxes = [[float(one.get(name)) for name in ("x", "y", "width", "height")] for one in inner]
    assert float(whole.get("width")) == max(x + width for x, _, width, _ in boxes) <= plots.MOST_WIDTH
    assert float(whole.get("height")) == max(y + height for _, y, _, height in boxes)
    for i, (x, y, _width, _) in enumerate(boxes[1:], 1):
        before = boxes[i - 1]
        beside = x == before[0] + before[2] and y == before[1]
        assert beside or (x == 0 and y >= before[1] + before[3]), "no picture covers another"
    names = [one.get("id") for one in whole.iter() if one.get("id")]
    assert len(names) == len(set(names)), "no chart is clipped by another's frame"
    with pytest.raises(InputError, match="nothing to draw"):
        plots.picture(rising, "svg", sections=["warnings"])


def without(blocked, *arguments, cwd):
    """The program, where the modules `blocked` are not installed."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "from gpubench.cli import main; sys.exit(main())"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd, capture_output=True, text=True, check=False, timeout=300,
        env={"HOME": str(cwd), "PATH": ""},
    )  # fmt: skip


def test_the_command_writes_pictures(gpubench, tmp_path):
    save(run_of(curve(RISING)), tmp_path / "run.json")
    done = gpubench("report", "run.json", "--plots", "pictures", "--sections", "speedup")
    assert done.returncode == 0, done.stderr
    found = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert found == ["speedup-matmul-float32.svg", "time-matmul-float32.svg"]
    assert done.stderr == "wrote 2 charts to pictures\n"
    assert "Speedup" in done.stdout


@pytest.mark.slow
def test_the_report_may_be_a_picture(gpubench, tmp_path):
    save(run_of(curve(RISING)), tmp_path / "run.json")
    assert gpubench("report", "run.json", "-o", "all.png").returncode == 0
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    done = gpubench("report", "run.json", "--format", "svg", "--sections", "speedup")
    assert (done.returncode, done.stderr) == (0, "")
    ElementTree.fromstring(done.stdout)
    done = without(["vl_convert"], "report", "run.json", "--format", "png", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "error: --format png: charts cannot be drawn here"


def test_the_command_without_the_libraries_says_how_to_get_them(tmp_path):
    save(run_of(curve(RISING)), tmp_path / "run.json")
    done = without(["altair", "vl_convert"], "report", "run.json", "--plots", "pictures", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: --plots: charts cannot be drawn here",
        "  why: what draws is not installed: no altair and no vl_convert",
        f"  fix: {locate(install_command())}",
    ]


@pytest.mark.parametrize("command", [["report", "run.json"], ["run", "--ops", "add"]])
def test_unknown_picture_formats_are_refused_before_anything_happens(gpubench, tmp_path, command):
    save(run_of(curve(RISING)), tmp_path / "run.json")
    done = gpubench(*command, "--plots", "pictures", "--plot-format", "svgz")
    assert done.returncode == 2
    assert "svg" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "pictures").exists()


@pytest.mark.slow
def test_run_writes_the_page_and_the_pictures_that_report_writes(gpubench, tmp_path):
    what = ["--ops", "add", "--sizes", "1k,4k", "--devices", "fake:cpu", "--quick", "--min-samples", "3"]
    where = [
        "-o",
        "page.html",
        "-o",
        "all.svg",
        "-o",
        "result.json",
        "--plots",
        "pictures",
        "--max-time",
        "20ms",
    ]
    done = gpubench("run", *what, *where)
    assert done.returncode == 0, done.stderr
    assert "wrote 2 charts to pictures" in done.stderr
    assert gpubench("report", "result.json", "-o", "again.html").returncode == 0
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "page.html").read_bytes()
    drawn = gpubench("report", "result.json", "--format", "svg")
    assert drawn.stdout == (tmp_path / "all.svg").read_text()
