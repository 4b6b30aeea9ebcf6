"""SQL92 subscriptions on the wire: what is sent, what wakes a held pull, what is refused."""

from __future__ import annotations

from collections import Counter

import pytest

from broker.reading import pull_processor, sql92
from broker.reading.held_pulls import CONDITIONS_LENGTH_MAX
from broker.reading.pull_processor import _FILTERED_PULLS_EACH
from broker.reading.sql92_words import SqlError
from broker.reading.subscriptions import SQL_WORK_MAX
from broker.remoting.bodies import (
    CheckClientConfigBody,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import encode_body
from tests.broker.fields import pull_fields
from tests.broker.harness import Client, Group, Pulled


@pytest.fixture
def group() -> Group:
    return prepared()


def prepared(**broker: object) -> Group:
    group = Group.elected(1, broker=broker)
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    client.close()
    return group


def start_pull(
    client: Client,
    expression: str,
    offset: int = 0,
    *,
    given: bool = True,
    suspend_ms: int = 0,
    version: int = 0,
    kind: str = "SQL92",
    topic: str = "T",
    group: str = "g",
) -> int:
    return client.start_call(
        RequestCode.PULL_MESSAGE,
        pull_fields(
            topic=topic,
            consumerGroup=group,
            queueOffset=offset,
            sysFlag=(4 if given else 0) | (2 if suspend_ms else 0),
            suspendTimeoutMillis=suspend_ms,
            subVersion=version,
            subscription=expression,
            expressionType=kind,
        ),
    )


def pull(client: Client, expression: str, offset: int = 0, **options: object) -> RemotingCommand:
    return client.wait(start_pull(client, expression, offset, **options))  # type: ignore[arg-type]


def subscribe(client: Client, expression: str, version: int = 1, group: str = "g") -> None:
    subscription = SubscriptionData(
        topic="T", sub_string=expression, sub_version=version, expression_type="SQL92"
    )
    data = HeartbeatData(client_id="c")
    data.consumer_data_set.append(ConsumerData(group_name=group, subscription_data_set=[subscription]))
    client.ok(RequestCode.HEART_BEAT, None, encode_body(data))


def send(client: Client, *numbers: int) -> None:
    for number in numbers:
        client.send("T", b"%d" % number, 0, {"n": str(number), "region": "eu" if number % 2 else "us"})


def test_only_what_matches_is_sent_and_the_rest_is_passed_over(client: Client) -> None:
    send(client, *range(10))
    pulled = Pulled.of(pull(client, "n > 3 and region = 'eu'"))
    assert (pulled.bodies, pulled.next_offset) == ([b"5", b"7", b"9"], 10)
    nothing = Pulled.of(pull(client, "n > 30"))
    assert (nothing.code, nothing.next_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 10)


def test_long_expressions_look_at_fewer_messages_and_none_is_left_out(client: Client) -> None:
    send(client, *range(60))
    expression = " or ".join(f"n = {number}" for number in range(300, 1000)) + " or n = 59"
    offset, found = 0, []
    while offset < 60:
        pulled = Pulled.of(pull(client, expression, offset))
        assert offset < pulled.next_offset <= offset + 32
        found += pulled.bodies
        offset = pulled.next_offset
    assert found == [b"59"]


def test_long_properties_are_work_for_a_condition_and_none_is_left_out(client: Client) -> None:
    """Each term of a condition looks through all of them: a second in one response, if nobody counted."""
    for number in range(8):
        client.send("T", b"%d" % number, properties={"n": str(number), "long": "x" * (number % 2 * 20_000)})
    expression = " or ".join(f"n = {number}" for number in range(300, 600)) + " or n = 6"
    assert 8 * len(expression) < SQL_WORK_MAX, "its length alone leaves room for all of them"
    ends, found = [0], []
    while ends[-1] < 8:
        pulled = Pulled.of(pull(client, expression, ends[-1]))
        found += pulled.bodies
        ends.append(pulled.next_offset)
    assert ends == [0, 4, 8], "two of the long ones are enough"
    assert found == [b"6"]


def test_a_held_pull_wakes_for_what_matches_only(client: Client) -> None:
    held = start_pull(client, "n = 7", suspend_ms=20_000)
    send(client, 5, 6)
    assert held not in client.answers
    send(client, 7)
    pulled = Pulled.of(client.wait(held))
    assert (pulled.bodies, pulled.next_offset) == ([b"7"], 3)


def test_only_so_many_characters_of_conditions_are_held(group: Group, client: Client) -> None:
    """One message woke ten thousand pulls with conditions of 8 KiB each: seconds in one turn."""
    expression = "n = 7 or " * 888 + "n = 8"  # 8,000 characters or so
    most = CONDITIONS_LENGTH_MAX // 2 // len(expression)  # of one address
    others = [group.connect() for _ in range(4)]
    pulls = [start_pull(others[0], expression, suspend_ms=20_000)]
    group.settle()  # it is read once: those that come while it is being read would each read it, too
    pulls += [start_pull(others[number % 4], expression, suspend_ms=20_000) for number in range(1, most + 3)]
    group.settle()
    held = group.node(group.leader).stats.pulls_held
    assert held() == most
    answers = [answer for other in others for answer in other.answers.values()]
    assert len(pulls) - len(answers) == most
    assert {answer.code for answer in answers} == {ResponseCode.PULL_NOT_FOUND}
    others[0].close()
    client.wait(start_pull(client, "n = 1", suspend_ms=1000))
    send(client, 8)
    group.settle()
    assert held() == 0


def test_the_subscription_of_a_heartbeat_counts(client: Client) -> None:
    subscribe(client, "n between 2 and 3")
    send(client, *range(5))
    assert Pulled.of(pull(client, "", given=False, version=1)).bodies == [b"2", b"3"]
    assert pull(client, "", given=False, version=2).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    subscribe(client, "n = 4", 2)
    assert Pulled.of(pull(client, "", given=False, version=2)).bodies == [b"4"]


def test_retry_topics_are_not_filtered(client: Client) -> None:
    client.send("%RETRY%g", b"again", 0)
    assert Pulled.of(pull(client, "n > 1", topic="%RETRY%g")).bodies == [b"again"]


REFUSALS = """
pull     | n >                | SQL92 | 23 | the subscription 'n >' is no SQL92 condition: at character 4: the expression ends too early
pull     | n > 'x'            | SQL92 | 23 | the subscription "n > 'x'" is no SQL92 condition: at character 5: only numbers and properties can be compared by >
pull     | n > 5              | LUA   | 1  | The broker does not support consumer to filter message by LUA
check    | n like 'x'         | SQL92 | 23 | the subscription "n like 'x'" is no SQL92 condition: at character 3: 'like' is not expected here
check    | n > 5              | LUA   | 1  | The broker does not support consumer to filter message by LUA
check    | n > 5              | SQL92 | 0  |
subscribed | n between 5      | SQL92 | 27 | the subscription 'n between 5' is no SQL92 condition: at character 12: the expression ends too early
"""  # noqa: E501


@pytest.mark.parametrize("line", REFUSALS.strip().splitlines())
def test_refusals(group: Group, line: str) -> None:
    how, expression, kind, code, remark = (cell.strip() for cell in line.split("|"))
    client = group.connect()
    if how == "pull":
        answer = pull(client, expression, kind=kind)
    elif how == "check":
        subscription = SubscriptionData(topic="T", sub_string=expression, expression_type=kind)
        body = encode_body(CheckClientConfigBody("c", "g", subscription))
        answer = client.call(RequestCode.CHECK_CLIENT_CONFIG, None, body)
    else:
        subscribe(client, expression)
        answer = pull(client, "", given=False, version=1)
    assert (answer.code, answer.remark or "") == (int(code), remark)


def test_without_a_subscription_there_is_no_filter(client: Client) -> None:
    client.heartbeat("g", ())
    assert pull(client, "", given=False).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


def test_filters_can_be_switched_off() -> None:
    client = prepared(sql_filters=False).connect()
    answer = pull(client, "n > 5")
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "The broker does not support consumer to filter message by SQL92",
    )


def test_pulls_and_checks_with_conditions_have_a_turn_each(
    group: Group, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(client, 1)
    parsed: list[str] = []
    compile_sql = sql92.compile_sql

    def counted(expression: str) -> sql92.Predicate:
        parsed.append(expression)
        return compile_sql(expression)

    monkeypatch.setattr(sql92, "compile_sql", counted)
    body = encode_body(
        CheckClientConfigBody(
            "c", "g", SubscriptionData(topic="T", sub_string="n > 5", expression_type="SQL92")
        )
    )
    began = [start_pull(client, f"n < {number}") for number in range(10, 40)]
    began += [client.start_call(RequestCode.CHECK_CLIENT_CONFIG, None, body) for _ in range(10)]
    process, counts = group.members[group.leader].process, []
    while group.node(group.leader).long_requests.has_more:
        counts.append(len(parsed))
        process.turn(group.now_ns, group.wall_ms)
        process.end_turn()
    assert counts == list(range(40)), "what was parsed before each turn"
    assert [client.wait(opaque).code for opaque in began] == [ResponseCode.SUCCESS] * 40


def test_a_connection_that_ends_leaves_no_pull_with_a_condition_behind(group: Group, client: Client) -> None:
    other = group.connect()
    start_pull(other, "n > 5", suspend_ms=20_000)
    other.close()
    group.settle()
    assert group.node(group.leader).stats.pulls_held() == 0


def test_no_connection_takes_all_the_places_of_pulls_with_conditions(group: Group, client: Client) -> None:
    send(client, 1)
    other = group.connect()
    many = [start_pull(other, f"n = 1 OR n = {number}") for number in range(_FILTERED_PULLS_EACH + 5)]
    one = start_pull(client, "n = 1")
    assert client.wait(one).code == ResponseCode.SUCCESS
    codes = Counter(other.wait(opaque).code for opaque in many)
    assert codes == {ResponseCode.SUCCESS: _FILTERED_PULLS_EACH, ResponseCode.SYSTEM_BUSY: 5}
    again = start_pull(other, "n = 1")
    assert other.wait(again).code == ResponseCode.SUCCESS, "places are freed"


def test_pulls_with_conditions_that_wait_for_a_turn_are_so_many_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pull_processor, "_FILTERED_PULLS_MAX", 10)
    group = prepared()
    clients = [group.connect(host="10.0.0.1") for _ in range(8)]
    send(clients[0], 1)
    asked = [(client, start_pull(client, f"n = 1 OR n = {number}")) for number, client in enumerate(clients)]
    # One address has half of the places, and leaves of the others as many free as it takes (`SharedPlaces`).
    codes = [client.wait(opaque).code for client, opaque in asked]
    assert codes == 5 * [ResponseCode.SUCCESS] + 3 * [ResponseCode.SYSTEM_BUSY]
    assert pull(clients[-1], "n = 1").code == ResponseCode.SUCCESS, "places are given back"


def test_a_long_condition_is_read_in_steps(group: Group, client: Client) -> None:
    """It took up to 50 ms in one turn; between two steps others are answered."""
    send(client, 1)
    condition = "n = 1" + " OR n = 1" * 800
    assert len(condition) > 7000
    opaque = start_pull(client, condition)
    process, turns = group.members[group.leader].process, 0
    while group.node(group.leader).long_requests.has_more:
        process.turn(group.now_ns, group.wall_ms)
        process.end_turn()
        turns += 1
    assert turns == 1 + 3200 // sql92._TOKENS_AT_ONCE
    assert Pulled.of(client.wait(opaque)).bodies == [b"1"]
    assert list(sql92.compile_in_steps(condition)) == [], "it is remembered"
    unusable = condition + " OR"
    assert list(sql92.compile_in_steps(unusable))
    assert list(sql92.compile_in_steps(unusable)) == [], "so is one that cannot be used"
    with pytest.raises(SqlError):
        sql92.compile_sql(unusable)


def test_addresses_take_turns_at_the_steps_of_long_conditions(group: Group, client: Client) -> None:
    """A newcomer waited for a step of each of the others, again and again."""
    send(client, 1)
    conditions = [f"n = 1 OR n = {number}" + " OR n = 1" * 800 for number in range(21)]
    steps = sum(1 for _ in sql92.compile_in_steps("n = 1 OR n = 99" + " OR n = 1" * 800))
    for condition in conditions[:-1]:
        start_pull(group.connect(host="10.0.0.1"), condition)
    newcomer = group.connect(host="10.0.0.2")
    opaque = start_pull(newcomer, conditions[-1])
    process = group.members[group.leader].process
    for _ in range(2 * (1 + steps)):
        assert group.node(group.leader).long_requests.has_more
        process.turn(group.now_ns, group.wall_ms)
        process.end_turn()
    assert group.node(group.leader).long_requests.has_more, "the others are not over"
    assert opaque in newcomer.answers
    assert Pulled.of(newcomer.wait(opaque)).bodies == [b"1"]


def test_long_conditions_of_one_address_follow_each_other(group: Group, client: Client) -> None:
    """All of them were half read at the same time, and each was answered at the end of all."""
    send(client, 1)
    conditions = [f"n = 1 OR n = {number}" + " OR n = 1" * 800 for number in range(5)]
    steps = sum(1 for _ in sql92.compile_in_steps("n = 1 OR n = 99" + " OR n = 1" * 800))
    opaques = [start_pull(client, condition) for condition in conditions]
    process = group.members[group.leader].process
    for count in range(1, 6):
        for _ in range(1 + steps):
            process.turn(group.now_ns, group.wall_ms)
            process.end_turn()
        assert [opaque in client.answers for opaque in opaques] == [True] * count + [False] * (5 - count)


def test_a_condition_is_not_read_on_for_a_client_that_is_gone(group: Group, client: Client) -> None:
    send(client, 1)
    other = group.connect()
    condition = "n = 1" + " OR n = 1" * 800
    start_pull(other, condition)
    body = encode_body(
        CheckClientConfigBody(
            "c", "g", SubscriptionData(topic="T", sub_string=condition, expression_type="SQL92")
        )
    )
    other.start_call(RequestCode.CHECK_CLIENT_CONFIG, None, body)
    other.close()
    node, turns = group.node(group.leader), 0
    while node.long_requests.has_more:
        group.members[group.leader].process.turn(group.now_ns, group.wall_ms)
        group.members[group.leader].process.end_turn()
        turns += 1
    assert turns <= 4


def test_a_held_pull_that_wakes_does_not_read_its_condition_again(
    group: Group, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be hundreds, each of another group, with conditions of 40 ms."""
    conditions = [f"n = 1 OR n = {number}" + " OR n = 1" * 100 for number in range(20)]
    for number, condition in enumerate(conditions):
        subscribe(client, condition, group=f"g{number}")
    held = [
        start_pull(client, "", given=False, suspend_ms=20_000, group=f"g{number}") for number in range(20)
    ]
    group.settle()
    assert group.node(group.leader).stats.pulls_held() == 20
    parsed: list[str] = []
    monkeypatch.setattr(sql92, "compile_sql", parsed.append)
    send(client, 1)
    group.settle()
    assert {client.answers[opaque].code for opaque in held} == {ResponseCode.SUCCESS}
    assert not parsed
