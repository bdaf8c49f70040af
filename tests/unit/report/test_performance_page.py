"""docs/performance.md: its tables come from result files, its prose stays, and every command of the plan is valid."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks import performance
from benchmarks.performance_page import NOTHING, command, files_of, rewrite
from gpubench.cli import selection
from gpubench.result.case import select_cases
from gpubench.result.store import dumps
from tests.unit.report.builders import CPU, GPU, case, measured, run_of

WGPU = replace(GPU, id="wgpu:0", backend="wgpu", gpu_id="GPU-1")
DEVICES = (CPU, replace(GPU, gpu_id="GPU-1"), WGPU)
BLOCKS = ("runs", "peaks", "matmul", "shapes", "ladder", "memory", "rows", "dtypes", "overheads")
PAGE = "Prose.\n<!-- files: old.json -->\n" + "\n".join(
    f"<!-- begin: {name} -->\nstale\n<!-- end: {name} -->\nwords about {name}" for name in BLOCKS
)


def on_device(seconds, *args, **kwargs):
    return measured(case(*args, **kwargs), 2 * seconds, hot_s=seconds)


def outcomes():
    copy, n = 2**26, 4096
    return [
        on_device(8 * copy / 4e12, "copy", copy, device="cupy:0"),
        on_device(12 * copy / 2e12, "add", copy, device="cupy:0"),
        on_device(12 * copy / 3e12, "add", copy, "tuned", device="wgpu:0"),
        on_device(8 * 2**20 / 9e12, "copy", 2**20, device="cupy:0"),
        on_device(2 * n**3 / 50e12, n=n, device="cupy:0"),
        on_device(2 * n**3 / 45e12, n=n, implementation="tuned", device="wgpu:0"),
        on_device(2 * n**3 / 5e12, n=n, implementation="tuned", variant="naive", device="wgpu:0"),
        on_device(1.0, n=n, dtype="float16", device="cupy:0"),
        measured(case("softmax", copy), 1.0),
    ]


@pytest.fixture
def page(tmp_path):
    run = run_of(outcomes(), devices=DEVICES)
    argv = [
        "run", "--ops", "add,matmul", "--results-dir", "x", "--tag", "performance", "--quick", "--no-progress",
    ]  # fmt: skip
    overheads = run_of(
        [measured(case("upload", 2**30, "tuned", device="cupy:0"), 2**30 / 55e9)], devices=DEVICES
    )
    (tmp_path / "a.json").write_bytes(dumps(replace(run, argv=argv)))
    later = replace(overheads, id="2", argv=["run"], started_at="2026-01-03T00:00:00Z")
    (tmp_path / "b.json").write_bytes(dumps(later))
    return rewrite(PAGE, ["b.json", "a.json"], tmp_path)


def block(page, name):
    return page.partition(f"<!-- begin: {name} -->\n")[2].partition("<!-- end")[0]


def test_prose_stays_and_no_table_is_stale(page):
    assert page.startswith("Prose.")
    assert all(f"words about {name}" in page for name in BLOCKS)
    assert "stale" not in page


def test_the_files_are_named_in_the_order_of_time(page):
    assert files_of(page) == ["a.json", "b.json"]
    assert "| `gpubench run --ops add,matmul --quick` |" in block(page, "runs")


def test_a_cell_has_rate_share_and_ratio(page):
    rows = block(page, "memory").splitlines()
    assert rows[0] == "| op | n | numpy:0 lib | cupy:0 lib | wgpu:0 tuned |"
    assert "| add | 64 M |  | 2.00 TB/s, 50% | 3.00 TB/s, 75%, 1.50 x |" in rows
    assert not [row for row in rows if "1Mi" in row]  # a copy in cache is no copy beside one that is not


def test_the_geometric_mean_names_its_sizes(page):
    text = block(page, "matmul")
    assert "| 4096 | 50.0 TFLOP/s, 100% | 45.0 TFLOP/s, 90%, 0.90 x |" in text
    assert (
        "wgpu:0 tuned against the vendor library: geometric mean 0.900 over 4096; lowest 0.900 at 4096." in text
    )
    assert "naive" not in text


def test_the_ladder_climbs_to_the_library(page):
    rows = [row.split(" | ")[3] for row in block(page, "ladder").splitlines()[2:]]
    assert rows == ["lib", "tuned naive", "tuned"]


def test_other_blocks(page):
    assert "float16" in block(page, "dtypes")
    assert "float16" not in block(page, "memory")
    assert "| cupy:0 | upload, pinned | 1 GiB |" in block(page, "overheads")
    assert "55.0 GB/s" in block(page, "overheads")
    assert block(page, "shapes").strip() == NOTHING


def test_rewriting_is_stable(page, tmp_path):
    assert rewrite(page, files_of(page), tmp_path) == page


def test_a_page_without_files_or_with_a_strange_block_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no line"):
        files_of("nothing")
    (tmp_path / "a.json").write_bytes(dumps(run_of([])))
    with pytest.raises(ValueError, match="block 'other'"):
        rewrite("<!-- begin: other -->\n<!-- end: other -->", ["a.json"], tmp_path)


def test_a_command_leaves_out_where_the_output_went():
    assert command(["run", "--ops", "a b", "-o", "x.json", "--format=csv"]) == "gpubench run --ops 'a b'"


@pytest.mark.parametrize("sizes", [performance.LARGE, performance.MIDDLE, performance.SMALL])
def test_every_command_of_the_plan_names_ops_that_there_are(sizes):
    for arguments in [arguments for runs in performance.plan(sizes).values() for arguments in runs]:
        words = dict(zip(arguments[::2], arguments[1::2], strict=False))
        names = selection.parse_ops(words["--ops"])
        sized = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--sizes"]
        found = selection.parse_sizes(sized, names)
        assert words["--ops"] == "roofline" or set(found) <= set(names)
        selection.parse_dtypes(words.get("--dtypes", "float32"))
        select_cases([], [arguments[i + 1] for i, word in enumerate(arguments) if word == "--skip"])


def test_the_page_is_fresh():
    root = Path(performance.ROOT)
    text = performance.PAGE.read_text(encoding="utf-8")
    assert rewrite(text, files_of(text), root) == text, "docs/performance.md is stale: run make docs"
