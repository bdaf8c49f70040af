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
from gpubench.base.installation import install_command, located
from gpubench.base.plugins.sections import usual
from gpubench.report import plots
from gpubench.report.charts import DARK, LIGHT, theme
from gpubench.report.contents import chart_set
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.anatomy import ENDS
from gpubench.result.run import Parts
from gpubench.result.store import save
from tests.unit.report.builders import case, curve, measured, run_of
from tests.unit.report.samples import cpu_run, full_run, hybrid_run, software_run

RISING = {64: 0.25, 256: 0.5, 1024: 4.0, 4096: 9.0}
SVG = "{http://www.w3.org/2000/svg}"


def charts(run, sections=None):
    found = chart_set(analyse(run), RenderOptions(sections=sections or usual()))
    return found, {chart.id: chart for chart in found.charts}


def test_every_case_with_an_estimate_is_a_point_of_the_time_chart():
    analysis = analyse(full_run())
    _, by_id = charts(full_run())
    rows = [row for ours in by_id["time"].rows.values() for row in ours]
    wanted = [row for row in analysis.cases if row.time is not None and row.case.group != "overhead"]
    assert len(rows) == len(wanted)
    assert {row["value"] for row in rows} == {float(f"{row.time.estimate:.5g}") for row in wanted}
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)


def test_parts_that_do_not_add_up_never_stretch_their_axis():
    """Parts of 50 times the whole call are drawn pale and cut off."""
    wrong = Parts(
        session=0,
        alloc_s=[0.0],
        upload_s=[0.05],
        launch_s=[0.0],
        sync_s=[0.0],
        single_s=[1e-4],
        download_s=[0.0],
    )
    rows = [
        measured(case(n=64), 1e-3), measured(case(n=64, device="cupy:0"), 1e-4, cold_s=1e-5),
        measured(case(n=64, regime="transfer-always", device="cupy:0"), 1e-3, parts=wrong),
    ]  # fmt: skip
    _, by_id = charts(run_of(rows))
    chart = by_id["anatomy"]
    shown = chart.rows["matmul float32"]
    assert max(row["value"] for row in shown) > 40
    assert {row["opacity"] < 0.5 for row in shown} == {True}
    assert chart.spec["encoding"]["x"]["scale"]["domain"] == list(ENDS)
    assert chart.spec["mark"]["clip"]
    _, by_id = charts(full_run())
    assert {row["opacity"] for row in by_id["anatomy"].rows["matmul float32"]} == {1.0}


def test_the_fastest_form_is_marked_once():
    _, by_id = charts(full_run())
    for rows in by_id["time"].rows.values():
        seen = [(row["n"], row["device"], row["regime"]) for row in rows if row["best"]]
        assert len(seen) == len(set(seen)) > 0


def test_speedups_share_their_baseline_and_break_evens_stand_at_one():
    found, by_id = charts(run_of(curve(RISING)))
    (analysis_row,) = analyse(run_of(curve(RISING))).break_even
    assert found.chosen == "matmul float32"
    rows = by_id["speedup"].rows["matmul float32"]
    assert [row["value"] for row in rows] == pytest.approx(list(RISING.values()))
    (mark,) = by_id["speedup"].marks["matmul float32"]
    assert (mark["n"], mark["one"]) == (analysis_row.n, 1)
    assert mark["low"] <= mark["n"] <= mark["high"]


def test_the_parts_of_a_call_add_up_to_one():
    _, by_id = charts(full_run())
    bars: dict[str, float] = {}
    for row in by_id["anatomy"].rows["matmul float32"]:
        bars[row["bar"]] = bars.get(row["bar"], 0.0) + row["value"]
    assert bars
    assert list(bars.values()) == pytest.approx([1.0] * len(bars), abs=1e-3)


def test_a_strip_holds_every_used_sample():
    _, by_id = charts(run_of([measured(case(n=64), 1e-5, sessions=3)]))
    (row,) = by_id["samples"].rows["matmul float32"]
    assert len(row["value"]) == len(row["session"]) == 30
    assert row["session"] == [0] * 10 + [1] * 10 + [2] * 10


def test_throughput_is_told_in_the_unit_of_what_limits_it():
    _, by_id = charts(full_run())
    units = {name: params["unit"] for name, params in by_id["throughput"].params.items()}
    assert (units["matmul float32"], units["relu float32"]) == ("FLOP/s", "B/s")
    assert by_id["throughput"].marks["copy float32"], "the copy is the memory roof"


def test_sizes_have_ticks_at_powers_of_two_or_where_they_are():
    _, by_id = charts(full_run())
    assert by_id["time"].params["matmul float32"]["ticks"] == [64, 128, 256, 512, 1024, 2048, 4096]
    _, by_id = charts(run_of(curve({1000: 0.5, 1500: 1.5})))
    assert by_id["speedup"].params["matmul float32"]["ticks"] == [1000, 1500]


def test_the_split_is_swept_from_the_cpu_alone_to_the_gpu_alone():
    (split, *_) = hybrids(analyse(hybrid_run()))
    _, by_id = charts(hybrid_run())
    rows = [row for ours in by_id["hybrid"].rows.values() for row in ours]
    assert {0.0, 1.0, split.fraction} <= {row["x"] for row in rows}
    mark = next(row for ours in by_id["hybrid"].marks.values() for row in ours)
    assert mark["better"] == pytest.approx(mark["value"] * split.gain, rel=1e-3)


def test_sections_choose_charts():
    _, by_id = charts(full_run(), ("roofline",))
    assert set(by_id) == {"throughput", "roofline"}
    assert charts(run_of([]))[0].charts == ()
    assert set(charts(cpu_run())[1]) == {"time", "throughput", "roofline", "samples"}


def allowed_and_drawn(*runs):
    """Every picture of these runs by its name. Vega-Lite's schema allows its spec, and it holds a mark for each row."""
    analyses, specs = report.analysed(list(runs)), []
    for analysis in analyses:
        found = chart_set(analysis, RenderOptions())
        for chart in found.charts:
            altair.Root.validate(chart.spec)
            specs += [(chart.id, spec) for _, spec in plots.pictures(chart, found.series)]
    drawn = dict(plots.plots(analyses, "svg"))
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
    names = [name for name, _ in found.devices]
    assert names[0] == "numpy:0"
    for chart in by_id.values():
        for domain in re.findall(r"'color': {'field': 'device'.*?'domain': (\[.*?\])", str(chart.spec)):
            assert domain == str(names)


def _luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("colors", "background"), [(LIGHT, "#ffffff"), (DARK, "#14181d")])
def test_accents_stand_out_from_the_background(colors, background):
    """A contrast of 3 to 1, as WCAG 2.2 asks of what is drawn."""
    for color in colors:
        high, low = sorted((_luminance(color), _luminance(background)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3, color
    assert theme(dark=background != "#ffffff")["range"]["category"] == list(colors)


@pytest.fixture(scope="module")
def rising():
    return report.analysed([run_of(curve(RISING))])


@pytest.fixture(scope="module")
def drawn(rising):
    """Every picture of it by its name."""
    return dict(plots.plots(rising, "svg"))


@pytest.mark.slow
def test_pictures_of_both_formats(rising, drawn):
    assert {"time-matmul-float32.svg", "speedup-matmul-float32.svg", "roofline-float32.svg"} <= set(drawn)
    again = dict(plots.plots(rising * 2, "svg", sections=["speedup"]))
    assert "2-speedup-matmul-float32.svg" in again
    first = {name: content for name, content in again.items() if not name.startswith("2-")}
    assert first
    assert first.items() < drawn.items(), "the same bytes again"
    (picture, *_) = dict(plots.plots(rising, "png", sections=["roofline"])).values()
    assert picture.startswith(b"\x89PNG")


@pytest.mark.slow
def test_one_picture_holds_the_map_and_below_it_all_charts(rising, drawn):
    """The tests of the command below draw it twice, with the same bytes, and as PNG."""
    whole = ElementTree.fromstring(plots.picture(rising, "svg"))
    inner = whole.findall(f"{SVG}svg")
    assert len(inner) == len({name.split("-")[0] for name in drawn})
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
    assert found == ["samples-matmul-float32.svg", "speedup-matmul-float32.svg", "time-matmul-float32.svg"]
    assert done.stderr == "wrote 3 charts to pictures\n"
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
        f"  fix: {located(install_command())}",
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
    assert "wrote 4 charts to pictures" in done.stderr
    assert gpubench("report", "result.json", "-o", "again.html").returncode == 0
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "page.html").read_bytes()
    drawn = gpubench("report", "result.json", "--format", "svg")
    assert drawn.stdout == (tmp_path / "all.svg").read_text()
