"""The clocks of a fleet: nobody is ended before its time, nobody is forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from gpubench.fleet.driver import FleetLimits, NodeClocks

LIMITS = FleetLimits(queue_s=60, silence_s=30, deadline_s=1800)


def test_waiting_ends_at_the_deadline_at_the_latest():
    clocks = NodeClocks(LIMITS, 0)
    assert clocks.wait_s(1799.5, 1) == 0.5
    assert clocks.wait_s(1801, 1) == 0
    assert (clocks.over(1799.9), clocks.over(1800)) == (False, True)


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "hear", "stop", "look"]), st.sampled_from("abc"), st.floats(0, 50)),
    max_size=60,
)
ANY_LIMITS = st.builds(FleetLimits, queue_s=st.floats(1, 100), silence_s=st.floats(1, 100))


@given(ANY_LIMITS, STEPS)
def test_a_node_is_overdue_when_a_plain_table_says_so(limits, steps):
    clocks, now = NodeClocks(limits, 0), 0.0
    due: dict[str, tuple[float, str]] = {}
    for what, node, later in [*steps, ("look", "a", 1e6)]:
        now += later
        if what == "ask":
            clocks.ask(node, now)
            due[node] = (now + limits.queue_s, "busy")
        elif what == "hear":
            clocks.hear(node, now)
            if node in due:
                due[node] = (now + limits.silence_s, "hung")
        elif what == "stop":
            clocks.stop(node)
            due.pop(node, None)
        else:
            wanted = {(name, why) for name, (at, why) in due.items() if at <= now}
            found = clocks.overdue(now)
            assert set(found) == wanted
            assert len(found) == len(wanted)
            due = {name: one for name, one in due.items() if (name, one[1]) not in wanted}
            # Nothing becomes overdue while the loop waits.
            assert all(clocks.wait_s(now, 1e9) <= at - now for at, _ in due.values())
