"""A wing: networks, whose stages are ops, on one device or with each stage on the CPU or the GPU."""

from gpubench.base.plugins.wings import Wing

_OPS = {
    "networks": (
        "mlp_backward", "mlp_forward", "mlp_step", "ffn", "multi_head_attention", "transformer_block", "inference",
    ),
    "training": ("mlp_sgd", "mlp_adam"),
}  # fmt: skip
WING = Wing(
    ops={name: f"gpubench.workloads.{module}:{name}" for module, names in _OPS.items() for name in names},
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
