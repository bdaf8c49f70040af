"""A wing: networks, whose stages are ops, on one device or with each stage on the CPU or the GPU.

Nothing imports it: `WING` says what it brings, and the rest works without its folder.
"""

from gpubench.base.plugins.wings import Wing

_OPS = {
    "networks": (
        "mlp_backward", "mlp_forward", "ffn", "multi_head_attention", "transformer_block", "inference",
    ),
    "training": ("mlp_step", "mlp_sgd", "mlp_adam", "transformer_step", "transformer_sgd"),
}  # fmt: skip
WING = Wing(
    ops={name: f"gpubench.workloads.{module}:{name}" for module, names in _OPS.items() for name in names},
    workspaces={"stages": "gpubench.workloads.chains:ChainWorkspace"},
    companions={"stages": "gpubench.workloads.measured_stages:StageCompanion"},
    sections=("gpubench.workloads.stages", "gpubench.workloads.stage_assignments"),
    warnings={
        "stage-mismatch": "gpubench.workloads.stages:list_mismatches",
        "assignment-mismatch": "gpubench.workloads.stage_assignments:list_mismatches",
    },
    shared_calls={"assignments": "gpubench.workloads.stage_assignments:assignments"},
    two_sides={"stages": "gpubench.workloads.two_sides:TwoSideSession"},
)
