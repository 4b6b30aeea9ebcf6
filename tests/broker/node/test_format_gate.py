"""Nodes of two releases in one group: what is new is written when all members read it, and nobody is hurt before."""

import msgspec
import pytest

from broker.state.commands import RaiseFormat, UnknownCommandError
from broker.state.release import FIRST_FORMAT, THIS_RELEASE, Release
from log.errors import DamagedStateError, StoreTooNewError
from log.notes.store_format import PATH, check_format, write_format
from tests.broker.harness import Group
from tests.log.memory_disk import MemoryDisk

EARLIER = Release("0.1.0", oldest_protocol=7, newest_protocol=7, newest_format=FIRST_FORMAT)
NEWEST = THIS_RELEASE.newest_format


def group_of(*releases: Release, hold_format: int = 0) -> Group:
    group = Group(len(releases), start=False)
    for member, release in zip(group.members.values(), releases, strict=True):
        member.release = release
        raft = msgspec.structs.replace(member.config.raft, hold_format=hold_format)
        member.config = msgspec.structs.replace(member.config, raft=raft)
    for node in group.members:
        group.start(node)
    group.elect()
    return group


def formats(group: Group) -> list[int]:
    """Of the living nodes."""
    return [member.alive.replica.metadata.format for member in group.alive()]


def change_release(group: Group, node: str, release: Release) -> None:
    """The node is killed, and starts again as another release."""
    group.kill(node)
    group.members[node].release = release
    group.start(node)
    group.elect()
    group.converge()


def test_a_group_of_one_release_writes_its_newest_format() -> None:
    group = group_of(THIS_RELEASE, THIS_RELEASE, THIS_RELEASE)
    group.advance(3)
    assert formats(group) == [NEWEST] * 3
    assert [check_format(member.disk, NEWEST) for member in group.members.values()] == [NEWEST] * 3


def test_the_format_is_raised_behind_the_last_member_and_not_before() -> None:
    group = group_of(EARLIER, EARLIER, EARLIER)
    group.connect().create_topic("T")
    for node in ("n0", "n1"):
        change_release(group, node, THIS_RELEASE)
        group.advance(5)
        assert formats(group) == [FIRST_FORMAT] * 3
        group.connect(node).send("T", b"in between")
    change_release(group, "n0", EARLIER)  # the way back is open
    change_release(group, "n0", THIS_RELEASE)
    change_release(group, "n2", THIS_RELEASE)
    group.advance(5)
    assert formats(group) == [NEWEST] * 3
    group.connect("n2").send("T", b"behind it")
    group.converge()
    for member in group.alive():
        queue = member.alive.replica.store.queues.get("T", 0)
        assert queue is not None
        assert queue.max_offset == 3


def test_a_member_that_is_away_is_waited_for() -> None:
    group = group_of(THIS_RELEASE, THIS_RELEASE, EARLIER)
    group.kill("n2")
    group.advance(10)
    assert formats(group) == [FIRST_FORMAT] * 2
    group.members["n2"].release = THIS_RELEASE
    group.start("n2")
    group.advance(5)
    assert formats(group) == [NEWEST] * 3


def test_a_setting_keeps_the_way_back_open() -> None:
    group = group_of(THIS_RELEASE, THIS_RELEASE, THIS_RELEASE, hold_format=FIRST_FORMAT)
    group.advance(10)
    assert formats(group) == [FIRST_FORMAT] * 3
    change_release(group, "n1", EARLIER)
    group.connect("n1").create_topic("T")


def test_a_store_of_a_raised_group_is_refused_by_the_earlier_release_by_name_and_stays_whole() -> None:
    group = group_of(THIS_RELEASE, THIS_RELEASE, THIS_RELEASE)
    group.advance(3)
    group.kill("n1")
    group.members["n1"].release = EARLIER
    with pytest.raises(StoreTooNewError, match=f"format {NEWEST}, written by release {THIS_RELEASE.name}"):
        group.start("n1")
    group.members["n1"].release = THIS_RELEASE
    group.start("n1")
    group.converge()
    assert formats(group) == [NEWEST] * 3


def test_a_member_of_the_earlier_release_stays_outside_of_a_raised_group() -> None:
    """Its disk was replaced, and with it the note of the format: the others know."""
    group = group_of(THIS_RELEASE, THIS_RELEASE, THIS_RELEASE)
    group.advance(3)
    group.kill("n1")
    group.replace_disk("n1")
    group.members["n1"].release = EARLIER
    group.start("n1")
    group.advance(20)
    assert group.node("n1").replica.links == {}
    assert group.node("n1").replica.applied_index == -1
    group.connect(group.leader).create_topic("T")


def test_a_member_that_goes_back_while_the_raise_is_under_way_stops_and_loses_nothing() -> None:
    group = group_of(THIS_RELEASE, THIS_RELEASE, EARLIER)
    replica = group.node(group.leader).replica
    group.node(group.leader).begin(group.now_ns, group.wall_ms)
    # As if n2 had gone back behind the leader's last look.
    replica.leadership.propose_command(RaiseFormat(NEWEST))
    group.members[replica.node_id].due_ns = group.now_ns
    with pytest.raises(UnknownCommandError, match="this release reads formats up to 1"):
        group.advance(1)
    group.kill("n2")
    group.members["n2"].release = THIS_RELEASE
    group.start("n2")
    group.elect()
    group.converge()
    assert formats(group) == [NEWEST] * 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'format'"),
        ("format = 2", "'written_by'"),
        ('format = "2"\nwritten_by = "x"', "format is '2'"),
        ('format = 0\nwritten_by = "x"', "format is 0"),
        ("\x00\x00", "does not say"),
    ],
)
def test_a_damaged_note_of_the_format_is_not_guessed(text: str, words: str) -> None:
    disk = MemoryDisk()
    disk.write_durably(PATH, text.encode())
    with pytest.raises(DamagedStateError, match=words):
        check_format(disk, NEWEST)


def test_the_note_of_the_format_can_be_read_by_people() -> None:
    disk = MemoryDisk()
    assert check_format(disk, NEWEST) == FIRST_FORMAT
    write_format(disk, 2, "0.2.0")
    assert disk.read(PATH) == b'format = 2\nwritten_by = "0.2.0"\nchecksum = "4ba40b18"\n'


def test_a_note_from_before_it_had_a_checksum_is_read() -> None:
    disk = MemoryDisk()
    disk.write_durably(PATH, b'format = 2\nwritten_by = "0.2.0"\n')
    assert check_format(disk, NEWEST) == 2


def test_no_flipped_bit_makes_another_format_of_it() -> None:
    """A node would refuse its store as a newer release's, or read it as an older one's."""
    disk = MemoryDisk()
    write_format(disk, 2, "0.2.0")
    whole = disk.read(PATH)
    for bit in range(len(whole) * 8):
        harmed = bytearray(whole)
        harmed[bit // 8] ^= 1 << bit % 8
        disk.write_durably(PATH, bytes(harmed))
        try:
            number = check_format(disk, NEWEST)
        except DamagedStateError:
            continue
        assert number == 2, f"bit {bit}: {bytes(harmed)!r}"
