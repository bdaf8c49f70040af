"""pandas reads the CSV with the types that its columns have."""

import pandas as pd
import pytest

DOCUMENTED = (
    "run_id,case_id,op,n,dtype,implementation,regime,calls,device,device_name,outcome,reason,time_s,lo_s,hi_s,ci_kind,min_s,q1_s,"
    "q3_s,mad_s,sessions,samples,flops_per_s,bytes_per_s,device_cold_s,device_hot_s,speedup,speedup_lo,speedup_hi,"
    "baseline_id,label,warnings"
)
LATER = "percent_of_peak,stage,stage_alone_s,runs_on,predicted_s,algbw,busbw,efficiency,efficiency_lo,efficiency_hi,balance"


@pytest.fixture
def table(report):
    return pd.read_csv(report("csv"))


def test_the_columns_are_the_documented_ones_and_new_ones_come_last(table):
    assert ",".join(table.columns) == f"{DOCUMENTED},{LATER}"


def test_speedups_can_be_computed_again(table):
    times = table.set_index("case_id")["time_s"]
    rows = table.dropna(subset=["speedup"])
    assert len(rows) > 10
    expected = rows["baseline_id"].map(times) / rows["time_s"]
    assert (expected / rows["speedup"] - 1).abs().max() < 1e-4
