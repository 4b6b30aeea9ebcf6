"""A stranger: crowds of connections from one address that show nothing of themselves, and end in any order.

Where they come a server has few places (`World`), so that some of the crowd have to go for others, and none that has
asked for something. `simulation/machines/client_port.py` judges who goes.
"""

import contextlib
from typing import Final

from broker.client.transport.runtime import ByteStream, Runtime
from broker.remoting.codes import RequestCode
from broker.remoting.command import encode, request
from broker.trace import TraceWriter
from simulation.workload.context import Context

_CROWD_MAX: Final = 200
_CONNECT_S: Final = 1.0
_FRAME: Final = encode(request(RequestCode.GET_BROKER_CONFIG))


async def loiter(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Comes in crowds to servers, one after the other, says next to nothing, and goes in its own time."""
    random = runtime.random
    here: list[ByteStream] = []
    while True:
        await runtime.sleep(random.expovariate(1 / 0.5))
        random.shuffle(here)
        for _ in range(random.randrange(len(here) + 1)):
            here.pop().close()
        if context.load_stopped:
            continue
        brokers = [host.address for host in context.members.in_service()]
        address = random.choice((*context.name_servers, *brokers))
        for _ in range(min(random.choice((1, 10, 100)), _CROWD_MAX - len(here))):
            stream = await _connected(runtime, address)
            if stream is None:
                break
            here.append(stream)
            sent = random.choice((0, 0, 1, 5, len(_FRAME) - 1, len(_FRAME)))
            if sent:
                with contextlib.suppress(OSError):  # it had to go for another
                    stream.write_nowait([_FRAME[:sent]])
            if sent == len(_FRAME):
                here.pop().close()  # else it would stay, as whoever has asked for something


async def _connected(runtime: Runtime, address: str) -> ByteStream | None:
    with runtime.move_on_after(_CONNECT_S):
        try:
            return await runtime.connect(address)
        except OSError:
            pass
    return None
