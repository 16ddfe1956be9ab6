"""Flower's SuperLink does less for a request and nothing else than before: who is let in, and in which order."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("flwr", reason="Flower is missing; pip install 'coterie[flower]'")

from flwr.supercore.routers.runtime.tracing import RuntimeTracingMiddleware
from flwr.superlink import main
from flwr.superlink.routers.control import middlewares as control
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from starlette.middleware import Middleware

from coterie.deploy import flower, lighter_superlink
from coterie.deploy.lighter_superlink import CONTROL, FLEET, Only, concerned, in_turn, lighten, now_and_then


def parts():
    """What is changed of Flower, by owner and name."""
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.corestate.sql_corestate import SqlCoreState
    from flwr.supercore.sql_mixin import SqlMixin

    cleaning = (SqlCoreState, "_cleanup_expired_task_tokens")
    return [(main, "_get_middleware"), (SqlMixin, "session"), cleaning, (SqlLinkState, "store_traffic")]


@pytest.fixture
def restored(monkeypatch):
    """Flower is as it was after the test; what it was."""
    before = [getattr(*each) for each in parts()]
    for (owner, name), value in zip(parts(), before, strict=True):
        monkeypatch.setattr(owner, name, value)
    return before


def test_the_version_that_was_checked_is_changed_in_all_four_parts(restored):
    lighten()
    now = [getattr(*each) for each in parts()]
    assert [ours is before for ours, before in zip(now, restored, strict=True)] == [False] * 4
    assert [each.cls for each in main._get_middleware()].count(Only) == 4


def test_another_version_of_flower_runs_as_it_is_and_its_log_says_so(restored, monkeypatch, caplog):
    """Of that one nobody has checked who is let in where."""
    monkeypatch.setattr(lighter_superlink.metadata, "version", lambda _: "1.41.7")
    lighten()
    assert [getattr(*each) for each in parts()] == restored
    assert "Flower is 1.41.7" in caplog.text


def test_what_flower_has_not_got_is_not_replaced_in_vain():
    """A node whose loop were not replaced would fetch the app that the server ships."""
    from flwr.supernode import start_client_internal

    with pytest.raises(
        RuntimeError, match=r"has no flwr\.supernode\.start_client_internal\._gone; coterie needs 1\.41"
    ):
        flower.replace(start_client_internal, _gone=None)
    assert not hasattr(start_client_internal, "_gone")


def test_every_layer_that_guards_is_kept_in_its_order_and_sees_its_own_paths():
    kept = [(each.args if each.cls is Only else (each, None)) for each in concerned(main._get_middleware())]
    guards = {layer.cls: beginning for layer, beginning in kept}
    order = [layer.cls for layer, _ in kept]
    assert guards[NodeAuthMiddleware] == FLEET
    assert guards[control.ControlAuthenticationMiddleware] == CONTROL
    assert order == [each.cls for each in main._get_middleware() if each.cls in order]
    assert RuntimeTracingMiddleware not in order
    assert len(order) == len(main._get_middleware()) - 3


def test_what_the_guards_look_at_are_the_paths_that_flower_gives_them():
    assert control._is_control_path(f"{CONTROL}start-run")
    assert not control._is_control_path(f"{FLEET}pull-messages")
    app = main.fleet_router
    assert all(route.path.startswith(FLEET) for route in app.routes)


@pytest.mark.parametrize(
    ("kind", "path", "seen"),
    [
        ("http", "/v1/fleet/pull-messages", ["layer", "app"]),
        ("http", "/v1/control/start-run", ["app"]),
        ("http", "/v1/fleets", ["app"]),
        ("websocket", "/v1/control/start-run", ["layer", "app"]),
        ("lifespan", "", ["layer", "app"]),
    ],
)
def test_a_layer_is_passed_by_paths_that_are_not_its_own(kind, path, seen):
    went = []

    async def app(scope, receive, send):
        went.append("app")

    class Layer:
        def __init__(self, inner):
            self.inner = inner

        async def __call__(self, scope, receive, send):
            went.append("layer")
            await self.inner(scope, receive, send)

    asyncio.run(Only(app, Middleware(Layer), FLEET)({"type": kind, "path": path}, None, None))
    assert went == seen


def test_threads_use_the_database_one_after_the_other_and_a_thread_may_nest():
    inside, most = [0], [0]

    @contextmanager
    def session(_):
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.005)
        yield "session"
        inside[0] -= 1

    turn = in_turn(session)

    def use():
        with turn(None) as found:
            assert found == "session"

    threads = [threading.Thread(target=use) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most == [1]
    with turn(None), turn(None):
        assert inside == [2]


def test_an_error_in_a_session_frees_the_turn_for_others():
    @contextmanager
    def session(_):
        yield None

    turn = in_turn(session)
    with pytest.raises(KeyError), turn(None):
        raise KeyError
    other = threading.Thread(target=lambda: turn(None).__enter__())
    other.start()
    other.join(5)
    assert not other.is_alive()


def test_a_search_is_done_again_after_its_pause():
    done = []
    search = now_and_then(done.append, 0.05)
    search(1)
    search(2)
    time.sleep(0.06)
    search(3)
    assert done == [1, 3]
