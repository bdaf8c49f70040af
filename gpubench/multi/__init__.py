"""The wing for several GPUs of one host.

The rest of gpubench finds what this package adds through `WING`, never imports it directly, and works without
it.
"""

from gpubench.base.plugins.wings import Wing

_OPS = ("allgather", "allreduce", "alltoall", "broadcast", "p2p", "p2p_both", "reducescatter")
WING = Wing(
    commands=dict.fromkeys(("run", "noise"), "gpubench.multi.options:ScalingOptions"),
    ops={name: f"gpubench.multi.ops:{name}" for name in _OPS},
    backends={"group": "gpubench.multi.device_group:BACKEND"},
    companions={"identical GPUs": "gpubench.multi.identical_gpus:IdenticalCompanion"},
    sections=("gpubench.multi.collectives", "gpubench.multi.scaling"),
    answers={"links": "gpubench.multi.collectives:answer_part"},
    timers={"collective": "gpubench.multi.device_group:CollectiveTimer"},
)
