"""benchmarks/dense_sweep.py on scripted devices, whose break-even is known."""

import shlex

from benchmarks import dense_sweep

TRUE_N = 16_900  # add: 1e-6 + 12 n / 4e10 = 6e-6 + 12 n / 3e12


def test_the_sweep_agrees_with_the_search(capsys, monkeypatch, tmp_path, starter):
    options = (
        "--devices", "fake:cpu,fake:gpu", "--curves", "add/resident-queued", "--sessions", "1", "--octaves", "0.1",
        "--budget", "3s",  # a named budget is used up
    )  # fmt: skip
    monkeypatch.setattr("sys.argv", ["dense_sweep.py", *options, "--out", str(tmp_path)])
    monkeypatch.setattr(dense_sweep, "COMMAND", shlex.split(starter.command()))
    monkeypatch.setenv("GPUBENCH_SKIP", "add/n>=2M")  # there the search costs seconds of real arithmetic
    monkeypatch.chdir(tmp_path)
    dense_sweep.main()
    (row,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("| add, resident-queued |")
    ]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    searched, swept = (int(cell.split()[0]) for cell in cells[1:3])
    assert abs(searched / TRUE_N - 1) < 0.1, "a line stands for a bent curve"
    assert abs(swept / TRUE_N - 1) < 0.01
    assert cells[4] == "yes"
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "search-add.json",
        "sweep-add-resident-queued.json",
    ]
