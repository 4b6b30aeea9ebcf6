"""The six strategies that share out the queues of a topic among the members of a consumer group.

They are RocketMQ's `AllocateMessageQueue*`. There is no coordinator: each member computes the same function of the same
sorted queues and members, and takes its own part. So a strategy is a pure function, and every detail of its arithmetic
is part of the protocol: members of one consumer group may be clients of different projects.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence

from broker.client.message import MessageQueue

Strategy = Callable[[str, Sequence[str], Sequence[MessageQueue]], list[MessageQueue]]
"""Gets the own client id, all members sorted, all queues sorted; returns the own queues. A member not listed has
none."""


def allocate_averagely(
    member: str, members: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Give each member a contiguous run; sizes differ by at most one, the larger first. RocketMQ's AVG, the default."""
    if member not in members:
        return []
    index = members.index(member)
    remainder = len(queues) % len(members)
    fair_size = len(queues) // len(members) + (1 if index < remainder else 0)
    size = max(fair_size, 1)  # with fewer queues than members the later members start past the end
    start = index * size if index < remainder or remainder == 0 else index * size + remainder
    return list(queues[start : start + size])


def allocate_by_circle(
    member: str, members: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Deal the queues like cards. RocketMQ's AVG_BY_CIRCLE."""
    if member not in members:
        return []
    return list(queues[members.index(member) :: len(members)])


def fixed_allocation(own: Sequence[MessageQueue]) -> Strategy:
    """Return a strategy that gives this member these queues, whatever the others do. RocketMQ's CONFIG."""

    def allocate(member: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        return [queue for queue in queues if queue in own]

    return allocate


def allocation_by_machine_room(rooms: Sequence[str]) -> Strategy:
    """Return a strategy that shares only queues of brokers called ``room@name`` with one of these rooms.

    It is RocketMQ's MACHINE_ROOM. Every member gets floor(queues / members); the first ones get one of the rest each.
    """

    def allocate(member: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        if member not in members:
            return []
        own_rooms = []
        for queue in queues:
            # As Java splits: empty parts at the end do not count.
            parts = queue.broker_name.rstrip("@").split("@")
            if len(parts) == 2 and parts[0] in rooms:
                own_rooms.append(queue)
        index = members.index(member)
        size, rest = divmod(len(own_rooms), len(members))
        allocated = own_rooms[index * size : (index + 1) * size]
        if index < rest:
            allocated.append(own_rooms[size * len(members) + index])
        return allocated

    return allocate


def allocation_nearby(
    broker_room: Callable[[str], str], member_room: Callable[[str], str], within_room: Strategy
) -> Strategy:
    """Return a strategy that shares a room's queues among its members, and those of rooms without members among all.

    It is RocketMQ's MACHINE_ROOM_NEARBY. ``broker_room`` returns the room of a broker name, ``member_room`` that of a
    client id; ``within_room`` shares the queues of one room.
    """

    def allocate(member: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        if member not in members:
            return []
        queues_by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_by_room.setdefault(broker_room(queue.broker_name), []).append(queue)
        members_by_room: dict[str, list[str]] = {}
        for other in members:
            members_by_room.setdefault(member_room(other), []).append(other)
        room = member_room(member)
        allocated = within_room(member, members_by_room[room], queues_by_room.get(room, []))
        for orphan_room in sorted(queues_by_room.keys() - members_by_room.keys()):
            allocated += within_room(member, members, queues_by_room[orphan_room])
        return allocated

    return allocate


def consistent_hash_allocation(virtual_nodes: int = 10) -> Strategy:
    """Return a strategy that places members on an MD5 ring and gives a queue to the next one clockwise.

    It is RocketMQ's CONSISTENT_HASH. A member that comes or goes moves few queues.
    """

    def allocate(member: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        if member not in members:
            return []
        # Where two nodes meet, the later member has the place, as in the reference's map.
        ring = {
            _ring_position(f"{other}-{node}"): other for other in members for node in range(virtual_nodes)
        }
        positions = sorted(ring)
        allocated = []
        for queue in queues:
            at = bisect.bisect_left(positions, _ring_position(_ring_name(queue)))
            if ring[positions[at % len(positions)]] == member:
                allocated.append(queue)
        return allocated

    return allocate


def _ring_name(queue: MessageQueue) -> str:
    # How the reference's queues print themselves, which is what it hashes.
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _ring_position(text: str) -> int:
    # The first four bytes of the digest, as the reference places its nodes.
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
