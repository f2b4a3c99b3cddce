"""Ports: a free one can be bound, a taken one is named with its owner."""

from __future__ import annotations

import os
import socket

import pytest

from infra import ports
from infra.errors import PortInUse


def test_free_port_can_be_bound_and_lies_in_the_range() -> None:
    port = ports.free_port()
    assert ports.PORT_MIN <= port <= ports.PORT_MAX
    with socket.create_server((ports.HOST, port)):
        assert not ports.is_free(port)
    assert ports.is_free(port)


def test_owner_of_a_listener_is_told() -> None:
    with socket.create_server((ports.HOST, 0)) as server:
        port = server.getsockname()[1]
        found = ports.owner(port)
        assert found is not None
        assert os.getpid() == found.pid
        with pytest.raises(PortInUse, match=f"kafka cannot listen: .* port=`{port}` pid=`{os.getpid()}`"):
            ports.require_free(port, component="kafka")


def test_port_of_nobody_has_no_owner() -> None:
    assert ports.owner(ports.free_port()) is None
