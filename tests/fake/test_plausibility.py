"""A device that is faster than its own peaks gets no number, and the reader sees both."""

OPS = ("--ops", "add,matmul", "--sizes", "add=1k", "--sizes", "matmul=512", "--regimes", "resident-queued")
CASE = "matmul/n=512/float32/library/resident-queued@fake:implausible"


def test_a_case_above_the_peak_is_shown_with_both_numbers_and_excluded(run):
    ran = run("--devices", "fake:cpu,fake:implausible", *OPS)
    assert ran.code == 0, ran.err
    peaks = ran.result["sessions"][0]["peaks"]
    assert {c["device_id"]: c["flops_per_s"] for c in peaks} == {
        "fake:cpu": 8e11,
        "fake:implausible": 4.5e13,
    }
    reported = next(line for line in ran.out.splitlines() if line.startswith("excluded, implausible"))
    assert "FLOP/s is above 1.10 x" in reported
    assert "implausible (1 case)" in ran.out
    assert CASE in ran.out
    speedup = ran.out.partition("Speedup: CPU time / GPU time")[2].partition("\n\nBreak-even")[0]
    assert "512" not in speedup.partition("Skipped")[0]
    assert ran.outcomes[CASE]["type"] == "measurement", "the samples stay in the file"


def test_a_device_at_its_peak_is_believed(run):
    ran = run("--devices", "fake:cpu,fake:gpu", *OPS)
    assert "implausible" not in ran.out


def test_checking_alone_measures_no_peak(run):
    ran = run("--devices", "fake:cpu,fake:gpu", *OPS, "--check-only")
    assert ran.code == 0, ran.err
    assert all(s["peaks"] == [] and s["telemetry"] == [] for s in ran.result["sessions"])


def test_a_copy_above_the_rate_of_the_link_is_shown_with_both_numbers_and_excluded(run):
    ops = ("--ops", "relu", "--sizes", "1M", "--regimes", "resident,transfer-always")
    ran = run("--devices", "fake:cpu,fake:implausible,fake:gpu", *ops)
    assert ran.code == 0, ran.err
    peaks = [c for c in ran.result["sessions"][0]["peaks"] if c["upload_bytes_per_s"]]
    assert {c["device_id"] for c in peaks} == {"fake:implausible", "fake:gpu"}
    assert "B/s over the link is above 1.10 x" in ran.out
    assert "implausible (1 case)" in ran.out
    assert "relu/n=1048576/float32/library/transfer-always@fake:implausible" in ran.out
