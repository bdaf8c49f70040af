"""A wing: networks, whose stages are ops, on one device or with each stage on the CPU or the GPU."""

from gpubench.base.plugins.wings import Wing

_OPS = (
    "mlp_backward", "mlp_forward", "mlp_step", "ffn", "multi_head_attention", "transformer_block", "inference",
)  # fmt: skip
WING = Wing(
    ops={name: f"gpubench.workloads.networks:{name}" for name in _OPS},
    workspaces={"stages": "gpubench.workloads.chains:ChainWorkspace"},
    companions={"stages": "gpubench.workloads.measured_stages:StageCompanion"},
    sections=("gpubench.workloads.stages", "gpubench.workloads.placement"),
    warnings={
        "stage-mismatch": "gpubench.workloads.stages:list_mismatches",
        "placement-mismatch": "gpubench.workloads.placement:list_mismatches",
    },
    shared_calls={"placements": "gpubench.workloads.placement:placements"},
    two_sides={"stages": "gpubench.workloads.placing:PlacingSession"},
)
