"""`gpubench ops` and `gpubench schema`."""

import json
from types import SimpleNamespace

import jsonschema
import pytest

from gpubench import backends, kernels
from gpubench.cli.ops import formula, listed_backends
from gpubench.cli.schema import documents
from gpubench.measure import targets
from tests.held import hold

REQUIRED = {
    "copy", "add", "sub", "mul", "div", "saxpy", "dot", "chain", "sum", "max", "matmul", "transpose",
    "relu", "sigmoid", "tanh", "gelu", "softmax",
}  # fmt: skip


ON_THE_HOST = {name for name in kernels.computing_ops() if kernels.load(name).host is not None}


def test_the_list_has_each_op_with_its_group_and_a_sentence_in_eighty_columns(in_process):
    ended = in_process("ops")
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    groups = [line for line in lines if line and not line.startswith((" ", "`"))]
    assert groups == [*kernels.groups(), "preset"]
    assert {line.split()[0] for line in lines if line.startswith("  ")} >= REQUIRED | {"roofline", "health"}
    assert "  matmul                C = A B of n x n matrices" in lines


def test_a_name_gets_the_rest(in_process):
    matmul, forward = in_process("ops", "matmul", "mlp_forward").stdout.split("\n\n")
    parts = (
        "a[n,n] b[n,n] -> out[n,n]", "2 n^3", "12 n^2", "side of the square matrices",
        "m: rows of A and C; k: columns of A",
    )  # fmt: skip
    assert [part for part in parts if part not in matmul] == []
    assert [part for part in ("x[n,784] w1[784,512]", "814140 n") if part not in forward] == []
    assert max(map(len, matmul.splitlines())) <= 80


def test_json_says_who_has_what(in_process):
    listed = {op["name"]: op for op in json.loads(in_process("ops", "--format", "json").stdout)["ops"]}
    assert listed.keys() >= REQUIRED
    for op in listed.values():
        if op["group"] in ("overhead", "collective"):
            assert not op["implementations"]["numpy"]
            continue
        assert "library" in op["implementations"]["numpy"]
        if op["name"] in ON_THE_HOST:
            assert not op["implementations"]["cupy"]
            assert not op["implementations"]["wgpu"]
            continue
        assert "library" in op["implementations"]["cupy"]
        assert op["implementations"]["wgpu"] == ["tuned"]
        assert op["default_sizes"] == sorted(set(op["default_sizes"]))
    assert listed["matmul"]["inputs"][0] == {"name": "a", "shape": ["n", "n"]}
    assert listed["matmul"]["options"].keys() == set(kernels.load("matmul").options)
    assert {"naive", "tiled"} <= set(listed["matmul"]["variants"]["wgpu"])
    # The best kernel is the library call, but the tuned implementation moves data in a better way.
    assert listed["matmul"]["implementations"]["cupy"] == ["library", "tuned"]


def test_markdown_is_one_table_and_a_group_gets_its_ops(in_process):
    text = in_process("ops", "--format", "markdown").stdout
    hold(text)
    lines = text.splitlines()
    assert len({line.count(" | ") for line in lines if "---" not in line}) == 1
    listed = json.loads(in_process("ops", "matrix", "--format", "json").stdout)["ops"]
    assert [op["name"] for op in listed] == list(kernels.groups()["matrix"])


def test_a_worker_asks_the_backends_of_other_packages(monkeypatch):
    facts = backends.facts
    monkeypatch.setattr(backends, "usual", lambda: ("numpy", "other"))
    monkeypatch.setattr(backends, "facts", lambda name: None if name == "other" else facts(name))
    for kinds, kind in ((["gpu"], "gpu"), (["cpu"], "cpu"), (["cpu", "gpu"], "gpu")):
        devices = [SimpleNamespace(kind=kind) for kind in kinds]
        other = SimpleNamespace(backend="other", implementations=("library",), brought={}, devices=devices)
        monkeypatch.setattr(targets, "list_devices", lambda names, other=other: [other] * (names == ["other"]))
        numpy, listing = listed_backends()
        assert (numpy.kind, listing) == ("cpu", ("other", ("library",), {}, kind))


@pytest.mark.parametrize(
    ("cost", "text"),
    [(lambda n: 0, "0"), (lambda n: n, "n"), (lambda n: n - 1, "n - 1"), (lambda n: 2 * n**3, "2 n^3"), (lambda n: 8 * n + 4, "8 n + 4"),
     (lambda n: 4 * n * n + 8 * n - 1, "4 n^2 + 8 n - 1"), (lambda n: n * n - n, "n^2 - n"), (lambda n: max(1, n // 1024), "n/1024"),
     (lambda n: 1024, "1024"), (lambda n: n**3, "n^3"), (lambda n: n**4, "16777216 at n=64"), (lambda n: n * n.bit_length(), "448 at n=64")],
)  # fmt: skip
def test_costs_as_formulas(cost, text):
    assert formula(cost) == text


@pytest.mark.parametrize("name", documents())
def test_schemas(in_process, name):
    full = json.loads(in_process("schema", name).stdout)
    jsonschema.Draft202012Validator.check_schema(full)
    assert full["title"] == name
    if "report" not in name:  # whose rows are made from the analysis
        structs = [struct.get("properties", {}) for struct in full["$defs"].values()]
        fields = [(field, about) for struct in structs for field, about in struct.items()]
        silent = [(field, about) for field, about in fields if "description" not in about]
        assert [field for field, about in silent if len(about.get("enum", ())) != 1] == []
    assert json.loads(in_process("schema", name.removeprefix("gpubench-")).stdout) == full
    assert name != "gpubench-result" or json.loads(in_process("schema").stdout) == full, "it is the default"
