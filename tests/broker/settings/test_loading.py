"""Settings of a node, in both syntaxes, and the refusal of files that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.settings.loading import SettingsError, load, load_name_server, to_toml
from broker.settings.rocketmq_keys import (
    BROKER_KEYS,
    BROKER_KEYS_WITHOUT_EFFECT,
    NAME_SERVER_KEYS,
    NAME_SERVER_KEYS_WITHOUT_EFFECT,
)
from broker.settings.rules import ImpossibleSettingError, check_broker
from broker.settings.tables import (
    NameServerSettings,
    NodeSettings,
    RaftSettings,
    Settings,
    StorageSettings,
)

SAMPLE_BROKER_CONF = """
# a node as the reference's DLedger samples describe it
brokerClusterName = RaftCluster
brokerName=RaftNode00
listenPort=30921
namesrvAddr=127.0.0.1:9876;127.0.0.2:9876
storePathRootDir=data/node01
storePathCommitLog=data/node01/commitlog
enableDLegerCommitLog=true
dLegerGroup=RaftNode00
dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913
## must be unique
dLegerSelfId=n1
sendMessageThreadPoolNums=16
flushDiskType=SYNC_FLUSH
deleteWhen=04;16
fileReservedTime=48
"""


def write(directory: Path, text: str, name: str) -> str:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_reference_file_starts_a_node(tmp_path: Path) -> None:
    settings = load(write(tmp_path, SAMPLE_BROKER_CONF, "broker.conf"))
    assert settings.node == NodeSettings(
        cluster="RaftCluster",
        group="RaftNode00",
        id="n1",
        listen="127.0.0.1:30921",
        name_servers=("127.0.0.1:9876", "127.0.0.2:9876"),
    )
    assert settings.raft.peers == {"n0": "127.0.0.1:40911", "n1": "127.0.0.1:40912", "n2": "127.0.0.1:40913"}
    assert settings.storage.flush == "sync"
    assert settings.retention.delete_hours == (4, 16)
    assert settings.retention.reserved_hours == 48
    assert settings.log_directory == "data/node01/dledger-n1"
    assert settings.follower_broker_id == 2
    ineffective = [warning.split(": ")[1] for warning in settings.warnings]
    assert ineffective == ["storePathCommitLog has no effect", "sendMessageThreadPoolNums has no effect"]


def test_defaults_are_the_references(tmp_path: Path) -> None:
    settings = load(write(tmp_path, "", "broker.conf"))
    assert settings == Settings()
    assert settings.node.cluster == "DefaultCluster"
    assert settings.node.listen == "127.0.0.1:10911"
    assert settings.storage.max_message_bytes == 4_194_304
    assert settings.storage.data_file_bytes == 1_073_741_824
    assert settings.storage.entry_index_file_bytes == 167_772_160
    assert settings.broker.default_queue_count == 8
    assert settings.broker.permission_bits == 6
    assert len(settings.broker.delay_level_ms) == 18
    assert settings.broker.delay_level_ms[:6] == (1000, 5000, 10_000, 30_000, 60_000, 120_000)


def test_toml_and_rocketmq_syntax_say_the_same(tmp_path: Path) -> None:
    from_properties = load(write(tmp_path, SAMPLE_BROKER_CONF, "broker.conf"))
    from_toml = load(write(tmp_path, to_toml(from_properties), "broker.toml"))
    assert to_toml(from_toml) == to_toml(from_properties)
    assert from_toml.warnings == ()


@given(path=st.text(min_size=1), group=st.text(min_size=1), port=st.integers(1, 65535))
def test_written_toml_reads_back(
    tmp_path_factory: pytest.TempPathFactory, path: str, group: str, port: int
) -> None:
    settings = Settings(
        node=NodeSettings(group=group, listen=f"[::1]:{port}"),
        raft=RaftSettings(peers={"n0": "127.0.0.1:1", "n1": "example.org:2"}, preferred_leaders=("n1",)),
        storage=StorageSettings(path=path, flush="sync"),
    )
    if not (path + group).isprintable():
        return  # control characters and lone surrogates are no names
    directory = tmp_path_factory.mktemp("toml")
    assert load(write(directory, to_toml(settings), "node.toml")) == settings


@pytest.mark.parametrize(
    ("text", "line", "key", "said"),
    [
        ('[node]\nlissten = "a:1"', 2, "node.lissten", "did you mean listen?"),
        ('[node]\nid = "x1"', 2, "node.id", 'must be a node id ("n" and a number, such as n0)'),
        ("[node]\nid = 1", 2, "node.id", "node.id = 1: must be a node id"),
        ('listen = "a:1"', 1, "listen", "listen belongs to [node]"),
        ("[stroage]\npath = 'x'", 1, "stroage", "did you mean storage?"),
        ("node = 1", 1, "node", "a table is expected: [node]"),
        (
            '[storage]\n\nflush = "fast"',
            3,
            "storage.flush",
            "storage.flush = fast: must be one of async, sync",
        ),
        ("[storage]\ndata_file_bytes = 4097", 2, "storage.data_file_bytes", "a multiple of 4096"),
        (
            "[storage]\nmax_message_bytes = 0",
            2,
            "storage.max_message_bytes",
            "must be a whole number from 1 to ",
        ),
        ("[broker]\nlong_polling = 1", 2, "broker.long_polling", "must be true or false"),
        (
            "[retention]\ndelete_hours = [24]",
            2,
            "retention.delete_hours",
            "each item a whole number from 0 to 23",
        ),
        ("[node]\nid = \n\n", 2, "", "not TOML"),
        (f"[node]\nlinger_s = {'9' * 5000}", None, "", "not TOML: Exceeds the limit"),
        (f"[node]\nlinger_s = {'[' * 2000}", None, "", "not TOML: maximum recursion depth"),
        ('[raft]\npeers = { n1 = "a:1" }', 2, "raft.peers", "must include this node, n0; it has n1"),
        ('[raft]\npeers = { n0 = "a:1", n1 = "a:1" }', 2, "raft.peers", "n0 and n1 both have a:1"),
        ('[raft]\npeers = { n0 = "a" }', 2, "raft.peers", "'a': needs the form host:port"),
        ('[raft]\npeers = { n0 = "a:0" }', 2, "raft.peers", "cannot be 0"),
        ('[raft.peers]\nn0 = "a:1"\nn1 = "a:1"', 1, "raft.peers", "both have a:1"),
        ('[raft]\npeers = { n0 = "127.0.0.1:10911" }', 2, "raft.peers", "clients and peers need two ports"),
        ('[raft]\npreferred_leaders = ["n0"]', 2, "raft.preferred_leaders", "has no leader to prefer"),
        ("[raft]\nelection_timeout_max_ms = 1000", 2, "raft.election_timeout_max_ms", "must be above"),
        ("[raft]\nelection_timeout_min_ms = 3000", None, "raft.election_timeout_max_ms", "must be above"),
        (
            "[raft]\nheartbeat_ms = 900",
            2,
            "raft.heartbeat_ms",
            "at most half of election_timeout_min_ms (1000)",
        ),
        ("[storage]\ndata_file_bytes = 65536", None, "storage.max_message_bytes", "never spans two files"),
        (
            "[retention]\ndisk_clean_percent = 95",
            None,
            "retention.disk_force_percent",
            "between disk_clean_percent",
        ),
        (
            '[broker]\ndelay_levels = "1s 2x"',
            2,
            "broker.delay_levels",
            "'2x' is not a number followed by s, m, h or d",
        ),
        ('[node]\nlisten = "0.0.0.0:1"', None, "node.advertise", "no address that a client can connect to"),
        ('[node]\nlisten = "::1:1"', 2, "node.listen", "in brackets"),
        ('[node]\nlisten = "a:65536"', 2, "node.listen", "the port is a number from 0 to 65535"),
        (
            '[observe]\nmetrics = "127.0.0.1:10911"',
            2,
            "observe.metrics",
            "is the address of node.listen already",
        ),
    ],
)
def test_refused_toml(tmp_path: Path, text: str, line: int | None, key: str, said: str) -> None:
    path = write(tmp_path, text, "node.toml")
    with pytest.raises(SettingsError) as caught:
        load(path)
    error = caught.value
    assert (error.file, error.line, error.key) == (path, line, key)
    assert said in str(error)
    assert str(error).startswith(path if line is None else f"{path}:{line}: ")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "line", "key", "said"),
    [
        ("brokrName=a", 1, "brokrName", "did you mean brokerName?"),
        ("dledgerGroup=a", 1, "dledgerGroup", "did you mean dLegerGroup?"),
        ("brokerName=a\ndLegerGroup=b", 2, "dLegerGroup", "brokerName = a says otherwise"),
        ("flushDiskType=SYNC", 1, "flushDiskType", "must be SYNC_FLUSH or ASYNC_FLUSH"),
        ("listenPort=99999", 1, "listenPort", "must be a port from 0 to 65535"),
        ("listenPort=x", 1, "listenPort", "must be a port from 0 to 65535"),
        ("fileReservedTime=soon", 1, "fileReservedTime", "must be a whole number"),
        ("fileReservedTime=0", 1, "fileReservedTime", "must be a whole number of at least 1"),
        ("deleteWhen=four", 1, "deleteWhen", "04;16"),
        ("slaveReadEnable=yes", 1, "slaveReadEnable", "must be true or false"),
        ("brokerPermission=7", 1, "brokerPermission", "6 (read and write)"),
        ("dLegerPeers=n0:127.0.0.1:1", 1, "dLegerPeers", "n0-127.0.0.1:40911"),
        ("dLegerPeers=n0-a:1;n0-a:2", 1, "dLegerPeers", "n0 stands twice"),
        ("\ndLegerPeers=n0-a:1;n1-a:2\ndLegerSelfId=n2", 2, "dLegerPeers", "must include this node, n2"),
        ("enableDLegerCommitLog=false", 1, "enableDLegerCommitLog", "every group is a Raft group"),
        ("enableControllerMode=true", 1, "enableControllerMode", "elects its leader itself"),
        ("brokerRole=MASTER", 1, "brokerRole", "ASYNC_MASTER, SLAVE, SYNC_MASTER"),
        ("a=\\u12", 1, "", "four hexadecimal digits"),
        ("aclFile=accounts.toml", 1, "aclFile", "acl.allow_plaintext = true takes that risk"),
    ],
)
def test_refused_broker_conf(tmp_path: Path, text: str, line: int, key: str, said: str) -> None:
    path = write(tmp_path, text, "broker.conf")
    with pytest.raises(SettingsError) as caught:
        load(path)
    assert (caught.value.file, caught.value.line, caught.value.key) == (path, line, key)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "clean", "force", "full"),
    [
        ("diskMaxUsedSpaceRatio=95", 95, 95, 95),
        ("diskMaxUsedSpaceRatio=88", 88, 88, 90),
        ("diskSpaceCleanForciblyRatio=70", 70, 70, 90),
        ("diskSpaceWarningLevelRatio=60", 60, 60, 60),
        ("diskMaxUsedSpaceRatio=80\ndiskSpaceWarningLevelRatio=82", 80, 82, 82),
        ("diskSpaceCleanForciblyRatio=97\ndiskMaxUsedSpaceRatio=60", 60, 97, 97),
        ("deleteWhen=04", 75, 85, 90),
    ],
)
def test_limits_of_the_disk_follow_the_one_that_a_broker_conf_sets(
    tmp_path: Path, text: str, clean: int, force: int, full: int
) -> None:
    found = load(write(tmp_path, text, "broker.conf")).retention
    assert (found.disk_clean_percent, found.disk_force_percent, found.disk_full_percent) == (
        clean,
        force,
        full,
    )


def test_limits_of_the_disk_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="between disk_clean_percent"):
        load(write(tmp_path, "diskMaxUsedSpaceRatio=95\ndiskSpaceWarningLevelRatio=90", "broker.conf"))


@pytest.mark.parametrize("name", ["node.toml", "broker.conf"])
def test_unreadable_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load(tmp_path / name)
    (tmp_path / name).write_bytes(b"a = \xff")
    with pytest.raises(SettingsError, match="byte 4 is not UTF-8"):
        load(tmp_path / name)


def test_repeated_key_warns_and_the_last_counts(tmp_path: Path) -> None:
    settings = load(write(tmp_path, "brokerName=a\nbrokerName=b", "broker.conf"))
    assert settings.node.group == "b"
    assert settings.warnings[0].endswith(":2: brokerName stands twice; this line counts")


def test_every_key_of_the_reference_fills_a_setting_or_warns(tmp_path: Path) -> None:
    """No key is in both tables, every target exists, and every ineffective key is accepted with one warning."""
    assert not BROKER_KEYS.keys() & BROKER_KEYS_WITHOUT_EFFECT.keys()
    assert not NAME_SERVER_KEYS.keys() & NAME_SERVER_KEYS_WITHOUT_EFFECT.keys()
    for key, meaning in BROKER_KEYS.items():
        table, field = meaning.setting.split(".")
        assert hasattr(getattr(Settings(), table), field), key
    values = {"brokerRole": "SLAVE"} | dict.fromkeys(("useServerSideResetOffset", "timerWheelEnable"), "true")
    text = "\n".join(f"{key}={values.get(key, 'false')}" for key in BROKER_KEYS_WITHOUT_EFFECT)
    assert len(load(write(tmp_path, text, "broker.conf")).warnings) == len(BROKER_KEYS_WITHOUT_EFFECT)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("enableLmq=true", "must be false: there are no light message queues"),
        ("enableMultiDispatch=true", "must be false: there are no light message queues"),
        ("useServerSideResetOffset=false", "must be true: resets are stored"),
        ("allAckInSyncStateSet=true", "must be false: a majority of the group acknowledges"),
    ],
)
def test_what_trivet_does_not_do_is_refused(tmp_path: Path, line: str, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load(write(tmp_path, line, "broker.conf"))


def test_accounts_need_tls_or_consent(tmp_path: Path) -> None:
    tls = '[tls]\ncertificate = "n0.pem"\nkey = "n0.key"\n'
    acl = '[acl]\nfile = "accounts.toml"\n'
    assert load(write(tmp_path, tls + acl, "n.toml")).acl.allow_plaintext is False
    assert load(write(tmp_path, acl + "allow_plaintext = true\n", "n.toml")).acl.allow_plaintext
    consent = "aclFile=accounts.toml\naclAllowPlaintext=true"
    assert load(write(tmp_path, consent, "n.conf")).acl.allow_plaintext
    for text in (acl, tls + 'mode = "disabled"\n' + acl, acl + "allow_plaintext = false\n"):
        with pytest.raises(
            SettingsError, match=r"accounts need TLS .*; acl\.allow_plaintext = true"
        ) as refused:
            load(write(tmp_path, text, "n.toml"))
        assert refused.value.key == "acl.file"


def test_a_configuration_of_5_is_read(tmp_path: Path) -> None:
    text = (
        "brokerName=a\nenablePopLog=true\nmetricsExporterType=PROM\ntimerWheelEnable=true\nstoreType=default"
    )
    settings = load(write(tmp_path, text, "broker.conf"))
    assert settings.node.group == "a"
    assert [warning.split(": ", 1)[1] for warning in settings.warnings] == [
        "enablePopLog has no effect: there is no POP consumption",
        "metricsExporterType has no effect: observe.metrics serves metrics in Prometheus' format",
        "timerWheelEnable has no effect: messages for a time of their own are in an index without settings",
        "storeType has no effect: there is no RocksDB",
    ]


@pytest.mark.parametrize(
    ("text", "listen", "told"),
    [
        ("brokerIP1=10.0.0.5", "10.0.0.5:10911", "10.0.0.5:10911"),
        ("brokerIP1=10.0.0.5:99", "10.0.0.5:10911", "10.0.0.5:99"),
        ("brokerIP1=[::1]", "[::1]:10911", "[::1]:10911"),
        ("brokerIP1=[::1]:99\nlistenPort=98", "[::1]:98", "[::1]:99"),
        ("brokerIP1=::1\nbindAddress=[::]", "[::]:10911", "[::1]:10911"),
    ],
)
def test_address_of_a_broker_conf(tmp_path: Path, text: str, listen: str, told: str) -> None:
    settings = load(write(tmp_path, text, "broker.conf"))
    assert (settings.node.listen, settings.advertised_address(10911)) == (listen, told)


def test_secrets_are_in_no_message(tmp_path: Path) -> None:
    for text, key in (
        ("[tls]\nkey_password = 87654321", "tls.key_password"),
        ("[raft]\npeer_secret = '87654321'", "raft.peer_secret"),
    ):
        with pytest.raises(SettingsError) as caught:
            load(write(tmp_path, text, "n.toml"))
        assert (caught.value.line, caught.value.key) == (2, key)
        assert "87654321" not in f"{caught.value} {vars(caught.value)}"
    with pytest.raises(SettingsError, match="registration_secret: at least 16 characters") as caught:
        load_name_server(write(tmp_path, "registration_secret = '87654321'", "n.toml"))
    assert "87654321" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("n.toml", "[raft]\npeer_secrets = 'hunter2 hunter2 hunter2'"),
        ("n.toml", "[tls]\nkey_passwort = 'hunter2'"),
        ("n.toml", "[node]\nraft.peer_secret = 'hunter2 hunter2 hunter2'"),
        ("n.toml", "peer_secret = 'hunter2 hunter2 hunter2'"),
        ("n.conf", "raft.peer_secrets = hunter2 hunter2 hunter2"),
        ("n.conf", "tls.server.keyPasword = hunter2"),
    ],
)
def test_an_unknown_key_does_not_show_its_value(tmp_path: Path, name: str, text: str) -> None:
    """It may be that of a secret, mistyped or in another's place."""
    for read in (load, load_name_server):
        with pytest.raises(SettingsError, match="unknown") as caught:
            read(write(tmp_path, text, name))
        assert "hunter2" not in f"{caught.value} {vars(caught.value)}"


def test_address_told_to_clients() -> None:
    def told(listen: str, advertise: str = "") -> str:
        return Settings(node=NodeSettings(listen=listen, advertise=advertise)).advertised_address(4321)

    assert told("127.0.0.1:0") == "127.0.0.1:4321"
    assert told("0.0.0.0:0", "10.0.0.5") == "10.0.0.5:4321"
    assert told("0.0.0.0:0", "gate.example.org:99") == "gate.example.org:99"
    assert told("[::1]:0") == "[::1]:4321"
    assert told("[::]:0", "fe80::1") == told("[::]:0", "[fe80::1]") == "[fe80::1]:4321"


def test_name_server_is_written_as_it_is_read(tmp_path: Path) -> None:
    settings = NameServerSettings(listen="127.0.0.1:99", ordered_messages=True, max_key_values=7)
    assert load_name_server(write(tmp_path, to_toml(settings), "n.toml")) == settings


def test_name_server_in_both_syntaxes(tmp_path: Path) -> None:
    from_toml = load_name_server(
        write(tmp_path, 'listen = "127.0.0.1:99"\nkv_config_path = "kv.json"', "n.toml")
    )
    from_conf = load_name_server(
        write(tmp_path, "listenPort=99\nkvConfigPath=kv.json\nserverWorkerThreads=8", "n.conf")
    )
    assert (from_toml.listen, from_toml.kv_config_path) == ("127.0.0.1:99", "kv.json")
    assert (from_conf.listen, from_conf.kv_config_path) == ("127.0.0.1:99", "kv.json")
    assert len(from_conf.warnings) == 1
    with pytest.raises(SettingsError, match="unknown key; did you mean listen"):
        load_name_server(write(tmp_path, 'lisen = "127.0.0.1:99"', "n.toml"))
    with pytest.raises(SettingsError, match="needs the form host:port"):
        load_name_server(write(tmp_path, 'listen = "9876"', "n.toml"))
    with pytest.raises(SettingsError, match="unknown key"):
        load_name_server(write(tmp_path, 'warnings = ["x"]', "n.toml"))


def test_programmatic_settings_are_checked_too() -> None:
    with pytest.raises(ImpossibleSettingError, match="must include this node") as caught:
        check_broker(Settings(raft=RaftSettings(peers={"n7": "127.0.0.1:1"})))
    assert caught.value.setting == "raft.peers"
