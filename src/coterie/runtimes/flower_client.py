"""A site's end of Flower: hands the bytes of a message to the site's agent and the agent's bytes back.

The server ships this file to the sites, and a fresh process runs it for every message. So it imports nothing of
coterie and nothing heavy: torch and the data are in the agent, which stays, and which alone can say no.
"""

import socket
import struct

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
LENGTH = struct.Struct(">Q")


@app.query()
def relay(message: Message, context: Context) -> Message:
    """One request to the agent, one reply from it."""
    request = message.content["coterie"]["request"]
    reply = call(str(context.node_config["agent-socket"]), request)  # type: ignore[arg-type]
    return Message(RecordDict({"coterie": ConfigRecord({"reply": reply})}), reply_to=message)


def call(path: str, request: bytes) -> bytes:
    """Send bytes to a socket and read the answer: its length in 8 bytes, then the bytes."""
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(path)
        agent.sendall(LENGTH.pack(len(request)) + request)
        return read(agent, LENGTH.unpack(read(agent, LENGTH.size))[0])


def read(agent: socket.socket, count: int) -> bytes:
    """Exactly so many bytes."""
    parts = bytearray()
    while len(parts) < count:
        part = agent.recv(min(1 << 20, count - len(parts)))
        if not part:
            raise ConnectionError("the site's agent ended in the middle of a reply; look at its log")
        parts += part
    return bytes(parts)
