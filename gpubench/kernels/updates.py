"""The updates of training: new weights from gradients, and the moments that Adam keeps of them (Kingma and Ba, arXiv
1412.6980). Each writes an array of its own, so that a launch changes nothing that it reads.

Adam is three ops, one for each array it makes, as a user of an array library writes it.
"""

from __future__ import annotations

from gpubench.kernels.contract.op import Array, Operand, Range, Tolerance, Values
from gpubench.kernels.templates.elementwise import absolute_sum, elementwise, vector_shape

SGD_RATE, ADAM_RATE = 0.125, 0.015625
MEAN_DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8
# Numbers near those of a training that is under way: float16 has no squares below 2^-14 in full precision.
SQUARES = Range(2.0**-14, 2.0**-12)


def _array(name: str, values: Values = "normal") -> Operand:
    return Operand(name, vector_shape, values=values)


def _length(step: int) -> float:
    """Return the rate with both corrections of the bias, as PyTorch takes them out of the quotient."""
    return ADAM_RATE * _root(step) / (1 - MEAN_DECAY ** (step + 1))


def _root(step: int) -> float:
    return float((1 - SQUARE_DECAY ** (step + 1)) ** 0.5)


def _epsilon(step: int) -> float:
    return EPSILON * _root(step)


def _spread(xp: Array, w: Array, mean: Array, v: Array, step: int) -> Array:
    return absolute_sum(xp, w, _length(step) * mean / xp.sqrt(v))


OPS = (
    elementwise(
        name="sgd",
        group="layers",
        summary="out = w - 0.125 dw",
        inputs=(_array("w"), _array("dw")),
        flops_per_element=2,
        formula=lambda m, w, dw: w - SGD_RATE * dw,
        library={"torch": lambda torch, w, dw, out=None: torch.sub(w, dw, alpha=SGD_RATE, out=out)},
        tolerance=Tolerance(4, scale=lambda xp, w, dw: absolute_sum(xp, w, SGD_RATE * dw)),
    ),
    elementwise(
        name="adam_mean",
        group="layers",
        summary="out = 0.9 m + 0.1 dw, the mean of Adam's gradients",
        inputs=(_array("m"), _array("dw")),
        flops_per_element=3,
        formula=lambda m, mean, dw: MEAN_DECAY * mean + (1 - MEAN_DECAY) * dw,
        library={"torch": lambda torch, mean, dw, out=None: torch.lerp(mean, dw, 1 - MEAN_DECAY, out=out)},
        tolerance=Tolerance(8, scale=lambda xp, mean, dw: absolute_sum(xp, mean, dw)),
    ),
    elementwise(
        name="adam_square",
        group="layers",
        summary="out = 0.999 v + 0.001 dw^2, the mean of their squares",
        inputs=(_array("v", SQUARES), _array("dw")),
        flops_per_element=4,
        formula=lambda m, v, dw: SQUARE_DECAY * v + ((1 - SQUARE_DECAY) * dw) * dw,
        library={
            "torch": lambda torch, v, dw, out=None: torch.add(
                v * SQUARE_DECAY, dw * dw, alpha=1 - SQUARE_DECAY, out=out
            )
        },
        tolerance=Tolerance(8),
    ),
    elementwise(
        name="adam",
        group="layers",
        summary="out = w - 0.015625 (m / (1 - 0.9^t)) / (sqrt(v / (1 - 0.999^t)) + 1e-8), t = step + 1",
        inputs=(_array("w"), _array("m"), _array("v", SQUARES)),
        options={"step": "updates made before this one (0)"},
        takes=("step",),
        flops_per_element=5,
        formula=lambda m, w, mean, v, step=0: w - _length(step) * mean / (m.sqrt(v) + _epsilon(step)),
        library={
            "torch": lambda torch, w, mean, v, step=0, out=None: torch.addcdiv(
                w, mean, torch.sqrt(v).add_(_epsilon(step)), value=-_length(step), out=out
            )
        },
        tolerance=Tolerance(12, scale=lambda xp, w, mean, v, step=0: _spread(xp, w, mean, v, step)),
    ),
)
