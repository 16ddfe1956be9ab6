"""Flower's commands without their start, which takes longer than their work: forked from a process that loaded them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any


class FlowerCommands:
    """Runs Flower's commands for a server: the first of each kind as the program it is, the others forked."""

    def __init__(self) -> None:
        self.started: set[tuple[str, ...]] = set()
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(["flwr.cli.app"])

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str], check: bool, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Flower as ``subprocess.run`` would."""
        kind = tuple(command[1:3]) if command[1] == "supernode" else (command[1],)
        if kind not in self.started:
            self.started.add(kind)
            return subprocess.run(command, env=env, check=check, **options)
        receiver, sender = self.processes.Pipe(duplex=False)
        process = self.processes.Process(target=carry_out, args=(command, dict(env), os.getcwd(), sender))
        process.start()
        sender.close()
        with receiver:
            code, out, err = receiver.recv() if receiver.poll(options["timeout"]) else (1, "", "no answer")
        process.join()
        return subprocess.CompletedProcess(command, code, out, err)


def carry_out(command: Sequence[str], env: Mapping[str, str], folder: str, sender: Connection) -> None:
    """Do in this process what the program would; send its exit code and what it wrote."""
    from flwr.cli.app import app

    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv, code = list(command), 0
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        for file, stream in ((out, sys.__stdout__), (err, sys.__stderr__)):
            os.dup2(file.fileno(), stream.fileno())
        try:
            app()
        except SystemExit as end:
            code = int(end.code or 0)
        for stream in (sys.__stdout__, sys.__stderr__):
            stream.flush()
        said = [os.pread(file.fileno(), 1 << 24, 0).decode() for file in (out, err)]
    sender.send((code, *said))
