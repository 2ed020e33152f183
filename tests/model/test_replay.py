"""The replay's rules on agents of a few actions, computed by hand."""

from collections.abc import Iterator

import pytest

from jaxbw._src.lab.model.replay import (
    Action,
    Arrive,
    Drain,
    ReplayError,
    Settle,
    Start,
    Wait,
    Work,
    replay,
)


def agent(*actions: Action) -> Iterator[Action]:
    return iter(actions)


def test_a_barrier_completes_with_its_last_arrival() -> None:
    outcome = replay(
        {
            "a": agent(Work("x", 5), Arrive(("r", 0))),
            "b": agent(Work("x", 3), Arrive(("r", 0), 4)),
            "c": agent(Wait(("r", -1)), Wait(("r", 0), 2), Work("y", 1)),
        },
        {"r": 2},
    )
    assert outcome.time == 10
    assert outcome.waited["c"] == 9


def test_an_engine_serves_in_the_order_of_time() -> None:
    outcome = replay(
        {
            "a": agent(Work("x", 2), Start("second", 0, (("e", 10),), 1)),
            "b": agent(Start("first", 1, (("e", 10),), 1)),
        },
        {},
    )
    assert outcome.time == 22
    assert outcome.busy["e"] == 20
    assert outcome.services["e"] == 2


def test_a_share_delays_what_comes_after_it_and_not_itself() -> None:
    one = Start("load", 0, (("port", 1),), 5, (("L2", 10),))
    assert replay({"a": agent(one)}, {}).time == 6
    assert replay({"a": agent(one, one, one)}, {}).time == 26


def test_a_drain_waits_for_the_engine() -> None:
    actions = (
        Start("MMA", 0, (("t", 7),), 0),
        Drain("t", 3, (("done", 0),)),
        Wait(("done", 0)),
        Work("x", 1),
    )
    assert replay({"a": agent(*actions)}, {}).time == 11


def test_settle_lets_the_youngest_go_on() -> None:
    store = Start("store", 0, (("path", 4),), 100, (), (), "g", 6)
    outcome = replay({"a": agent(store, store, Settle("g", 1), Work("x", 1))}, {})
    assert outcome.waited["a"] == 10  # the first has been read at 4 + 6
    outcome = replay({"a": agent(store, store, Settle("g", 0), Work("x", 1))}, {})
    assert outcome.waited["a"] == 14


def test_what_nobody_completes_is_said() -> None:
    with pytest.raises(ReplayError, match=r"a at \('r', 0\)"):
        replay({"a": agent(Wait(("r", 0)))}, {})


def test_intervals_are_kept_on_request() -> None:
    def made() -> dict[str, Iterator[Action]]:
        return {"a": agent(Work("x", 5, "e"), Arrive(("r", 0))), "b": agent(Wait(("r", 0)))}

    assert replay(made(), {}).intervals == []
    kept = {(i.track, i.name, i.begin, i.end) for i in replay(made(), {}, record=True).intervals}
    assert kept == {("e", "x", 0, 5), ("a", "x", 0, 5), ("b", "waits", 0, 5)}
