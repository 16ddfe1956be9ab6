"""How the node of a site is: what its ``/health`` and ``/metrics`` say. The node loads neither torch nor data.

The agent has no network by design, so its node speaks for it: it cannot read messages, but it knows how many it
carried, how fast they were answered, and whether the agent is there.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from coterie.deploy.carried import CARRIED, read_counts
from coterie.deploy.certificates import REMEDIES, expires, expiry_warnings
from coterie.deploy.config import SiteConfig
from coterie.deploy.monitoring import Health, Measure
from coterie.deploy.processes import Program


def of_programs(programs: Sequence[Program]) -> tuple[list[str], list[Measure]]:
    """Return which programs have ended, and a measure for each."""
    up = {program.name: program.process.poll() is None for program in programs}
    problems = [f"{name} has ended" for name, runs in up.items() if not runs]
    return problems, [Measure("up", "Whether a program runs", runs, {"program": name}) for name, runs in up.items()]


def days_left(folder: Path) -> list[Measure]:
    """Return how many days each certificate of a folder is still valid."""
    now = datetime.now(UTC)
    left = {name: (expires(folder / name) - now) / timedelta(days=1) for name in REMEDIES if (folder / name).is_file()}
    text = "Days until a certificate expires"
    return [Measure("certificate_days", text, days, {"file": name}) for name, days in left.items()]


def node_health(config: SiteConfig, program: Program, unreached: str | None = None) -> Health:
    """Return how the node of a site is: Flower's node, the agent behind it, the messages it carried.

    ``unreached`` says why the server is not reached, None if it is.
    """
    problems, measures = of_programs([program])
    problems += [] if unreached is None else [unreached]
    carried = read_counts(config.folder / "flower" / CARRIED)
    answers = agent_answers(config.socket_path)
    problems += [] if answers else [f"the agent does not answer at {config.socket_path}; start it"]
    counts = {
        "messages": ("Messages that the agent answered", carried.messages),
        "failures": ("Messages that the agent did not answer", carried.failures),
        "bytes_in": ("Bytes of requests", carried.bytes_in),
        "bytes_out": ("Bytes of replies", carried.bytes_out),
        "agent_seconds": ("Seconds that the agent took to answer", carried.seconds),
    }
    measures += [Measure("agent_answers", "Whether the agent answers", answers)]
    measures += [Measure(name, text, value, counts=True) for name, (text, value) in counts.items()]
    last = None if carried.last is None else datetime.fromtimestamp(carried.last, UTC).isoformat(timespec="seconds")
    facts = {"site": config.name, "messages": carried.messages, "last_message": last}
    return Health(problems, expiry_warnings(config.folder), facts, measures + days_left(config.folder))


def agent_answers(path: Path) -> bool:
    """Return whether an agent listens at a socket."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        probe.connect(str(path))
        return True
    return False
