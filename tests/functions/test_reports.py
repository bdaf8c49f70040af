"""What a run of a user's own functions gives is read by all that reads a run: the answer, the map,
advice, comparison, claims, gates and the formats of other programs."""

import json
import re

import pytest

from gpubench.result.case import own_names
from tests.forking import environment

FILE = """
import gpubench
@gpubench.function
def decay(xp, x):
    return xp.exp(-x) * x + 1
@gpubench.function
def total(xp, x):
    return xp.cumulative_sum(x)
"""
RUN = ("run options.py --sizes 256,4k,32k --devices numpy:0,fake:gpu --quick --max-samples 4 --max-time 2ms"
       " --no-autotune --no-progress").split()  # fmt: skip


@pytest.fixture(scope="module")
def folder(starter, tmp_path_factory):
    """A folder with two runs, `base.json` and `new.json`; `decay` was edited between them."""
    folder = tmp_path_factory.mktemp("functions")
    for name, text in (("base.json", FILE), ("new.json", FILE.replace("* x + 1", "* x + 2"))):
        (folder / "options.py").write_text(text, encoding="utf-8")
        starter.run(*RUN, "-o", name, cwd=folder, env=environment(folder / "home"), status=0)
    return folder


def test_the_answer_compares_what_is_written_and_a_copied_call_has_parts(in_process, folder):
    report = json.loads(in_process("report", "base.json", "--format", "json", cwd=folder).stdout)
    headlines = [row for row in report["speedups"] if row["kind"] == "headline"]
    assert {row["baseline_id"].split("/")[3] for row in headlines} == {"library"}
    copied = [row for row in report["cases"] if "options.total" in row["id"] and "transfer-always" in row["id"]]
    assert (len(copied), all(row["time_breakdown"]["launch_s"] > 0 for row in copied)) == (3, True)


def test_a_name_that_another_op_has_is_no_own_name():
    ops = ["mine.add", "add", "mine.scan"]
    assert own_names(ops) == dict(zip(ops, ["mine.add", "add", "scan"], strict=True))


def test_the_map_calls_functions_by_their_own_names(in_process, folder):
    text = in_process("report", "base.json", "--sections", "map", cwd=folder).stdout
    assert {line.split()[0] for line in text.splitlines() if line.strip()} >= {"decay", "total"}
    page = in_process("report", "base.json", "--sections", "map", "--format", "html", cwd=folder).stdout
    assert "decay" in page
    assert "options.decay" not in re.sub('data-op="[^"]*"', "", page)


def test_advice_names_the_command_of_the_file(in_process, folder):
    command = "advise decay --size 8M --from base.json --format json"
    advice = json.loads(in_process(*command.split(), cwd=folder).stdout)
    assert (advice["basis"], advice["command"]) == ("unknown", "gpubench run options.py:decay --sizes 8388608")
    known = in_process("advise", "options.total", "--size", "9k", "--from", "base.json", cwd=folder)
    assert "options.total float32, n = 9216" in known.stdout


def test_a_comparison_says_that_the_text_changed_and_by_how_much_the_results(in_process, folder):
    """`decay` returns 1 more, of a size between 1 and 3."""
    compared = in_process("compare", "base.json", "new.json", cwd=folder)
    assert compared.returncode in (0, 3), compared.stderr
    assert "text of options.decay: differs in 18 cases" in compared.stdout
    change = r"results of options.decay: differ by up to (\d+)% of their size in 18 cases"
    (share,) = re.findall(change, compared.stdout)
    assert 33 <= int(share) <= 100
    assert not [of for of in ("text", "results") if f"{of} of options.total" in compared.stdout]
    listed = in_process("compare", "base.json", "new.json", "--format", "json", cwd=folder)
    fields = {row["field"] for row in json.loads(listed.stdout)["differences"]}
    assert "text of options.decay" in fields
    assert "op_hash" not in fields, "that would make it another op"
    stored = json.loads((folder / "base.json").read_text(encoding="utf-8"))["outcomes"]
    assert {len(row["answer"]) for row in stored if "options.total" in row["id"]} == {16}


CLAIMS = """
[[claims]]
claim = "the GPU adds up"
case = "options.total/n=32k/float32/*/resident"
speedup = {}
"""
OF_CLAIMS = ("--claims", "ours.toml", "--sections", "claims")


@pytest.mark.parametrize(("asked", "status", "words"), [
    (("--min-speedup", "options.total/n=32k@fake=1.5"), 0, ""),
    (("--min-speedup", "options.total/n=32k@fake=1e9"), 3, ""),
    (("--fail-on", "incomplete"), 0, ""), ((1.5, *OF_CLAIMS), 0, "confirmed"), ((1e9, *OF_CLAIMS), 0, "refuted"),
    *((("--format", name), 0, "options.decay") for name in ("csv", "google-benchmark", "jsonl")),
    (("--format", "go"), 0, "BenchmarkOptions.decay")])  # fmt: skip
def test_gates_claims_and_other_programs_read_functions(in_process, folder, asked, status, words):
    if OF_CLAIMS[0] in asked:
        (folder / "ours.toml").write_text(CLAIMS.format(asked[0]), encoding="utf-8")
        asked = asked[1:]
    ended = in_process("report", "base.json", *asked, cwd=folder)
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert words in ended.stdout
