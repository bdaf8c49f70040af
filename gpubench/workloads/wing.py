"""Registration of networks: their ops, and what runs the stages of an op."""

from gpubench.base.plugins.wings import Wing

_OPS = (
    "ffn", "inference", "mlp_backward", "mlp_forward", "mlp_step", "multi_head_attention", "transformer_block",
)  # fmt: skip
WING = Wing(
    ops={name: f"gpubench.workloads.ops.{name}:OP" for name in _OPS},
    workspaces={"stages": "gpubench.workloads.worker.workspace:ChainWorkspace"},
    companions={"stages": "gpubench.workloads.measured_stages:StageCompanion"},
    warnings={"stage-mismatch": "gpubench.workloads.stages:mismatched"},
    two_sides={"stages": "gpubench.workloads.worker.placing:PlacingSession"},
)
