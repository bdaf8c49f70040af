"""Choose where a function runs: a library asks gpubench's measurements instead of a constant threshold.

Run it on the machine that `gpubench run --ops matmul` has measured; without a result it says so and takes the CPU.
"""

import sys

import numpy as np

import gpubench
from gpubench.base.errors import InputError


def matmul(a: np.ndarray, b: np.ndarray, policy: "gpubench.Policy | None") -> np.ndarray:
    """a @ b, on the GPU where the copies there and back have been measured to pay."""
    answer = policy.choose("matmul", shape=[a.shape, b.shape], dtype=a.dtype) if policy else None
    if answer is not None and answer.backend == "cupy":
        import cupy

        return cupy.asnumpy(cupy.asarray(a) @ cupy.asarray(b))
    return a @ b


def main() -> None:
    """Multiply once and say where."""
    try:
        policy = gpubench.Policy.load()
    except InputError as error:
        policy = None
        print(f"no measurement yet ({error.message}): the CPU it is", file=sys.stderr)
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((256, 256), dtype=np.float32) for _ in range(2))
    print(f"trace of the product: {np.trace(matmul(a, b, policy)):.3f}")


if __name__ == "__main__":
    main()
