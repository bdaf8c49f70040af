"""The contest of networks: gpubench's tuned implementation and PyTorch's eager mode, in separate processes.

Run: .venv/bin/python benchmarks/network_contest.py [--device numpy:0] [--torch cpu] [--pairs 10] [--ops
ffn,conv2d] On a GPU: --device cupy:0 --torch cuda:0, or --device wgpu:0 --torch cuda:0.

It prints a Markdown table of PyTorch's time / gpubench's time, so that gpubench is faster if the value is above
1. The exit code is always 0.

The pairs are those of contest.py. The PyTorch code is written as its users write it: functional calls on
weights that stay on the device. Gradients are recorded only for ops that compute them, and TF32 is off. A
*waited* time is that of one call and the wait for it, and a *queued* time is that of a call in a batch.
gpubench's output is checked before.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.contest import SIDES, parser, run_pairs
from gpubench import kernels
from gpubench.curves import stats
from gpubench.kernels import tokens
from gpubench.result.case import Case
from gpubench.workloads.networks import CONTEXT, LAYERS, NEW

SIZES = {
    "mlp_forward": (1, 16, 64, 1024, 16384),
    "mlp_backward": (1, 16, 64, 1024, 16384),
    "mlp_step": (1, 16, 64, 1024, 16384),
    "multi_head_attention": (1, 16, 64, 1024, 4096),
    "ffn": (1, 16, 64, 1024, 4096),
    "transformer_block": (1, 16, 64, 1024, 4096),
    "conv2d": (1, 8, 64, 256),
    "embedding": (100, 10_000, 100_000),
    "inference": (16, 64, 256, 1024),
}
BATCH_S, WARM_UP_S, SAMPLES, LEAST = 2e-3, 1e-2, 15, 3
# A GPU that no process uses through CUDA may run at a sixth of its clock rate until it has worked for a while.
GPU_WARM_UP_S = 0.5
SEED = 1
WIDTH, HEADS, CLASSES = 256, 8, 10

Call = Callable[[], Any]


def main() -> None:
    options = _options()
    names = options.ops.split(",")
    if options.child:
        _child(options, names)
        return
    _, pairs = run_pairs(__file__, options, ("ops", "device", "torch"))
    if options.output:
        Path(options.output).write_text(json.dumps(pairs, indent=1), encoding="utf-8")
    print(table(pairs, names, options))


def _child(options: Any, names: list[str]) -> None:
    began = time.monotonic()
    cases = [(name, n) for name in names for n in SIZES[name]]
    side = _Torch(options) if options.child == "torch" else _Ours(options)
    device = options.torch if options.child == "torch" else options.device
    warm_up_s = WARM_UP_S if device.startswith(("cpu", "numpy")) else GPU_WARM_UP_S
    seconds = {}
    for number, (name, n) in enumerate(cases):
        call, sync = side.prepare(name, n)
        share_s = (options.budget_s - (time.monotonic() - began)) / (len(cases) - number)
        seconds[f"{name} {n}"] = _times(call, sync, share_s, warm_up_s)
    print(json.dumps(seconds))


def _times(call: Call, sync: Call, limit_s: float, warm_up_s: float) -> dict[str, float]:
    """Return the median seconds of one waited call and of one queued call, in about `limit_s` seconds."""
    clock = time.perf_counter

    def time_calls(calls: int = 1) -> float:
        before = clock()
        for _ in range(calls):
            call()
        sync()
        return clock() - before

    began = clock()
    took = time_calls()
    while clock() - began < min(warm_up_s, limit_s):
        took = min(took, time_calls())
    repeat = max(1, round(BATCH_S / took))
    singles: list[float] = []
    batches: list[float] = []
    while not singles or (
        limit_s > 0 and len(batches) < SAMPLES and (len(batches) < LEAST or clock() - began < limit_s)
    ):
        singles.append(stats.median([time_calls() for _ in range(repeat)]))
        batches.append(time_calls(repeat) / repeat)
    return {"waited": stats.median(singles), "queued": stats.median(batches)}


class _Ours:
    """gpubench's tuned implementation, chosen and checked as in a run."""

    def __init__(self, options: Any) -> None:
        from gpubench import backends

        self._id = options.device
        self._session = backends.load(self._id.partition(":")[0]).open(self._id, options.threads)
        self._scratch = tempfile.TemporaryDirectory()

    def prepare(self, name: str, n: int) -> tuple[Call, Call]:
        from gpubench.workloads.chains import ChainWorkspace

        op, session = kernels.load(name), self._session
        case = Case(
            op=name, group=op.group, params={"n": n}, dtype="float32", implementation="tuned", regime="resident",
            device_id=self._id,
        )  # fmt: skip
        space = ChainWorkspace(session, op, case, SEED, "normal", Path(self._scratch.name))
        space.upload_inputs()
        space.tune(case)
        launch = space.compile(case, space.buffers, space.output(case))
        session.run(launch)
        session.sync()
        space.verify(launch)
        return lambda: session.run(launch), session.sync


class _Torch:
    """PyTorch's eager mode, with the weights on the device."""

    def __init__(self, options: Any) -> None:
        import torch

        self._torch, self._device = torch, torch.device(options.torch)
        torch.set_num_threads(options.threads)
        torch.set_grad_enabled(False)
        torch.backends.cudnn.allow_tf32 = False  # which PyTorch allows convolutions, and nothing else
        torch.manual_seed(SEED)

    def prepare(self, name: str, n: int) -> tuple[Call, Call]:
        sync = self._torch.cuda.synchronize if self._device.type == "cuda" else lambda: None
        return getattr(self, name)(n), sync

    def _normal(self, *shape: int) -> Any:
        return self._torch.randn(*shape, device=self._device)

    def _weight(self, rows: int, columns: int) -> tuple[Any, Any]:
        """Return a random weight with the shape (columns, rows) and a random bias, as of nn.Linear(rows, columns)."""
        return self._normal(columns, rows) / rows**0.5, self._normal(columns)

    def mlp_forward(self, n: int) -> Call:
        f, x = self._torch.nn.functional, self._normal(n, 784)
        first, second = self._weight(784, 512), self._weight(512, CLASSES)
        return lambda: f.softmax(f.linear(f.relu(f.linear(x, *first)), *second), -1)

    def mlp_backward(self, n: int) -> Call:
        """Return a call that computes the gradients of both layers, as autograd would, from random values."""
        torch = self._torch
        x, h, dz = self._normal(n, 784), self._normal(n, 512).relu(), self._normal(n, CLASSES)
        w2, _ = self._weight(512, CLASSES)

        def call() -> Any:
            dh = torch.ops.aten.threshold_backward(dz @ w2, h, 0)
            return dz.T @ h, dz.sum(0), dh.T @ x, dh.sum(0)

        return call

    def mlp_step(self, n: int) -> Call:
        """Return a call that computes the loss and its gradients by autograd."""
        torch, f, x = self._torch, self._torch.nn.functional, self._normal(n, 784)
        labels = torch.randint(CLASSES, (n,), device=self._device)
        weights = [
            array.requires_grad_()
            for pair in (self._weight(784, 512), self._weight(512, CLASSES))
            for array in pair
        ]

        def call() -> Any:
            with torch.enable_grad():
                logits = f.linear(f.relu(f.linear(x, *weights[:2])), *weights[2:])
                return torch.autograd.grad(f.cross_entropy(logits, labels), weights)

        return call

    def _attend(self) -> Callable[[Any], Any]:
        f = self._torch.nn.functional
        inward, outward = self._weight(WIDTH, 3 * WIDTH), self._weight(WIDTH, WIDTH)

        def call(x: Any) -> Any:
            q, k, v = f.linear(x, *inward).view(len(x), 3, HEADS, WIDTH // HEADS).permute(1, 2, 0, 3)
            heads = f.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
            return f.linear(heads[0].transpose(0, 1).reshape(len(x), WIDTH), *outward)

        return call

    def multi_head_attention(self, n: int) -> Call:
        attend, x = self._attend(), self._normal(n, WIDTH)
        return lambda: attend(x) + x

    def _feed_forward(self) -> Callable[[Any], Any]:
        f = self._torch.nn.functional
        first, second = self._weight(WIDTH, 4 * WIDTH), self._weight(4 * WIDTH, WIDTH)
        return lambda x: f.linear(f.gelu(f.linear(x, *first), approximate="tanh"), *second)

    def ffn(self, n: int) -> Call:
        forward, x = self._feed_forward(), self._normal(n, WIDTH)
        return lambda: forward(x)

    def transformer_block(self, n: int) -> Call:
        f = self._torch.nn.functional
        attend, forward, x = self._attend(), self._feed_forward(), self._normal(n, WIDTH)
        norms = [(self._normal(WIDTH), self._normal(WIDTH)) for _ in range(2)]

        def call() -> Any:
            y = x + attend(f.layer_norm(x, (WIDTH,), *norms[0]))
            return y + forward(f.layer_norm(y, (WIDTH,), *norms[1]))

        return call

    def conv2d(self, n: int) -> Call:
        f, x, w = self._torch.nn.functional, self._normal(n, 64, 32, 32), self._normal(64, 64, 3, 3)
        return lambda: f.conv2d(x, w, padding=1)

    def inference(self, n: int) -> Call:
        """Return a call that processes the prompt and then generates tokens."""
        torch, f = self._torch, self._torch.nn.functional
        table, positions = self._normal(tokens.ENTRIES, WIDTH), self._normal(CONTEXT, WIDTH)
        norms = [[(self._normal(WIDTH), self._normal(WIDTH)) for _ in range(2)] for _ in range(LAYERS)]
        inward, outward = ([self._weight(WIDTH, k * WIDTH) for _ in range(LAYERS)] for k in (3, 1))
        forward, last = (
            [self._feed_forward() for _ in range(LAYERS)],
            (self._normal(WIDTH), self._normal(WIDTH)),
        )
        head, _ = self._weight(WIDTH, tokens.ENTRIES)
        cache = torch.zeros(LAYERS, 2, HEADS, n + NEW, WIDTH // HEADS, device=self._device)
        prompt = torch.randint(tokens.ENTRIES, (n,), device=self._device)

        # Keys and values are cached, and the tokens stay on the device, so that no step waits for the host.
        def step(ids: Any, start: int) -> Any:
            count, end = len(ids), start + len(ids)
            x = f.embedding(ids, table) + positions[start:end]
            for layer in range(LAYERS):
                u = f.layer_norm(x, (WIDTH,), *norms[layer][0])
                qkv = f.linear(u, *inward[layer]).view(count, 3, HEADS, WIDTH // HEADS).permute(1, 2, 0, 3)
                cache[layer, :, :, start:end] = qkv[1:]
                keys, values = cache[layer, :, None, :, :end]
                heads = f.scaled_dot_product_attention(qkv[:1], keys, values, is_causal=count > 1)
                x = x + f.linear(heads[0].transpose(0, 1).reshape(count, WIDTH), *outward[layer])
                x = x + forward[layer](f.layer_norm(x, (WIDTH,), *norms[layer][1]))
            return f.linear(f.layer_norm(x[-1:], (WIDTH,), *last), head).argmax(-1)

        def call() -> Any:
            tokens = [prompt, step(prompt, 0)]
            for place in range(n, n + NEW - 1):
                tokens.append(step(tokens[-1], place))
            return torch.cat(tokens)

        return call

    def embedding(self, n: int) -> Call:
        torch, op = self._torch, kernels.load("embedding")
        ids, table, positions = (operand.shape({"n": n}) for operand in op.inputs)
        rows, added = self._normal(*table), self._normal(*positions)
        chosen = torch.randint(table[0], ids, device=self._device)
        return lambda: torch.nn.functional.embedding(chosen, rows) + added


def table(pairs: list[Any], names: list[str], options: Any) -> str:
    """Return a table with a row for each op and size."""
    where = f"{options.device} tuned beside PyTorch on {options.torch}, {options.threads} CPU threads, float32"
    lines = [
        f"{where}; {len(pairs)} pairs. Cells: PyTorch's time / ours [interval]. **Bold**: PyTorch is faster, surely.",
        "",
        "| op | n | PyTorch waited | ours waited | waited | queued |",
        "|---|---|---|---|---|---|",
    ]
    behind = []
    for name in names:
        for n in SIZES[name]:
            key, cells = f"{name} {n}", []
            for how in ("waited", "queued"):
                ratios = [pair["torch"][key][how] / pair["ours"][key][how] for pair in pairs]
                low, high = stats.median_interval(ratios)
                text = f"{stats.geometric_median(ratios):.2f} [{low:.2f}-{high:.2f}]"
                cells.append(f"**{text}**" if high < 1 else text)
                behind += [f"{key} {how}"] if high < 1 else []
            typical = [
                stats.median([pair[side][key]["waited"] for pair in pairs]) * 1e6 for side in SIDES[::-1]
            ]
            times = " | ".join(f"{time_us:,.0f} us" for time_us in typical)
            lines.append(f"| {name} | {n} | {times} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Behind PyTorch: {', '.join(behind) or 'none'}."])


def _options() -> Any:
    options = parser(__doc__, budget_s=240.0)
    options.add_argument("--device", default="numpy:0", help="gpubench's side")
    options.add_argument("--torch", default="cpu", help="PyTorch's device")
    options.add_argument("--ops", default=",".join(SIZES))
    return options.parse_args()


if __name__ == "__main__":
    main()
