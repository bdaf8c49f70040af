"""A search on a host with several identical GPUs: one is measured in full, the others are looked at, and a slow one is named."""

# Far above the break-even the search costs seconds of real arithmetic, and so does a large product.
SEARCH = "--ops add --backends fake --regimes resident-waited --skip add/n>=64k".split()
SMALL = "gpubench.multi.identical_gpus:SIZES={'upload':4194304,'copy':1048576,'matmul':256}"
THREE = {"GPUBENCH_FAKE_GPUS": "3", "GPUBENCH_FAKE_NOISE": "0.005", "TESTS_ALTER": SMALL}


def test_a_slow_gpu_is_named_on_the_screen_and_in_the_file_and_has_no_case(run):
    slow = run(*SEARCH, env={**THREE, "GPUBENCH_FAKE_SLOW": "gpu2=1.15"})
    assert slow.code == 0, slow.err
    assert "fake:gpu2 is 13 % slower at " in " ".join(slow.out.split())
    looked = {one["device_id"] for one in slow.result["identical_gpus"] if one["blocks_s"]}
    assert looked == {f"fake:gpu{number}" for number in range(3)}
    assert {outcome["case"]["device_id"] for outcome in slow.outcomes.values()} == {"fake:cpu", "fake:gpu0"}
    assert "fake:gpu1" not in {device["id"] for device in slow.result["devices"]}


def test_named_sizes_measure_all_gpus_and_look_at_no_other_gpu(run):
    ran = run("--ops", "add", "--backends", "fake", "--sizes", "1k", env=THREE)
    assert "identical_gpus" not in ran.result
    gpus = {outcome["case"]["device_id"] for outcome in ran.outcomes.values()}
    assert {f"fake:gpu{number}" for number in range(3)} <= gpus
