"""The wing of networks: ops made of stages. All stages run on one device, or some on the CPU and some on the GPU.

The rest of gpubench never imports this package. It finds the parts of the wing through `WING`, and works without
this folder.
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
