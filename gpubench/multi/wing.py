"""Registration of several GPUs: the collectives, and the backend of device groups."""

from gpubench.base.plugins.wings import Wing

_OPS = ("allgather", "allreduce", "alltoall", "broadcast", "p2p", "p2p_both", "reducescatter")
WING = Wing(
    ops={name: f"gpubench.multi.ops.{name}:OP" for name in _OPS},
    backends={"gang": "gpubench.multi.gang:BACKEND"},
    companions={"equal GPUs": "gpubench.multi.companion:EqualCompanion"},
    answers={"links": "gpubench.multi.answer:answer_part"},
    timers={"collective": "gpubench.multi.collective_timer:CollectiveTimer"},
)
