"""What the chart renders: `rendered.yaml` is what helm makes of it, compared again wherever there is helm.

python -m tests.deploying.test_chart        # writes it anew, with the helm on the PATH
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.settings.loading import load, load_name_server

HERE = Path(__file__).parent
CHART = HERE.parent.parent / "docs" / "deploying" / "helm" / "trivet"
RENDERED = HERE / "rendered.yaml"
VALUES = ("secrets.peer=peers-of-the-group", "secrets.registration=brokers-of-the-place")
Manifest = dict[str, Any]

needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="no helm here")


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *words], capture_output=True, text=True, timeout=120, check=False)


def template(*values: str) -> subprocess.CompletedProcess[str]:
    sets = [word for value in values for word in ("--set", value)]
    return helm("template", "mq", str(CHART), "--namespace", "messages", "--kube-version", "1.30.0", *sets)


def manifests() -> dict[tuple[str, str], Manifest]:
    """All that is rendered, by kind and name."""
    found = [one for one in yaml.safe_load_all(RENDERED.read_text()) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


@needs_helm
def test_it_renders_to_what_the_other_tests_read() -> None:
    assert helm("lint", str(CHART), "--strict", *[w for v in VALUES for w in ("--set", v)]).returncode == 0
    assert template(*VALUES).stdout == RENDERED.read_text(), "python -m tests.deploying.test_chart"


@needs_helm
@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ((), "secrets.registration is needed"),
        ((VALUES[1], "secrets.peer=short"), "secrets.peer has 5 characters"),
        ((*VALUES, "brokers.replicas=2"), "1, 3 or 5"),
        ((*VALUES, "brokers.terminationGracePeriodSeconds=30"), "must be longer than brokers.lingerSeconds"),
    ],
)
def test_values_that_cannot_be_are_refused(values: tuple[str, ...], complaint: str) -> None:
    refused = template(*values)
    assert refused.returncode
    assert complaint in refused.stderr


@needs_helm
def test_settings_that_are_added_and_name_servers_that_are_there(tmp_path: Path) -> None:
    rendered = template(
        *VALUES,
        "brokers.extraConfig=[retention]\nreserved_hours = 12",
        "nameServers.addresses={mq1.example:9876}",
        "brokers.replicas=1",
    )
    assert rendered.returncode == 0, rendered.stderr
    found = [one for one in yaml.safe_load_all(rendered.stdout) if one]
    assert {one["metadata"]["name"] for one in found} == {"mq-config", "mq-broker"}
    secret = next(one for one in found if one["kind"] == "Secret")
    (tmp_path / "n0.toml").write_text(secret["stringData"]["n0.toml"].replace("@ADDRESS@", "10.1.2.3"))
    settings = load(tmp_path / "n0.toml")
    assert settings.retention.reserved_hours == 12
    assert settings.node.name_servers == ("mq1.example:9876",)
    assert settings.raft.peers == {}


@needs_helm
def test_a_member_that_is_added_joins(tmp_path: Path) -> None:
    rendered = template(*VALUES, "brokers.replicas=4", "brokers.joinFrom=3")
    assert rendered.returncode == 0, rendered.stderr
    secret = next(one for one in yaml.safe_load_all(rendered.stdout) if one and one["kind"] == "Secret")
    joins = {}
    for number in range(4):
        path = tmp_path / f"n{number}.toml"
        path.write_text(secret["stringData"][path.name].replace("@ADDRESS@", "10.1.2.3"))
        joins[number] = load(path).raft.join
    assert joins == {0: False, 1: False, 2: False, 3: True}


def test_brokers_and_name_servers_take_their_settings(tmp_path: Path) -> None:
    texts = manifests()["Secret", "mq-config"]["stringData"]
    assert set(texts) == {"namesrv.toml", "n0.toml", "n1.toml", "n2.toml"}
    (tmp_path / "namesrv.toml").write_text(texts["namesrv.toml"])
    name_server = load_name_server(tmp_path / "namesrv.toml")
    for number in range(3):
        path = tmp_path / f"n{number}.toml"
        path.write_text(texts[path.name].replace("@ADDRESS@", f"10.1.2.{number}"))
        settings = load(path)
        assert settings.node.id == f"n{number}"
        assert settings.node.advertise == f"10.1.2.{number}"
        assert settings.node.registration_secret == name_server.registration_secret
        assert settings.raft.peers == {f"n{n}": f"mq-broker-{n}.mq-broker:40911" for n in range(3)}
        assert settings.node.name_servers == tuple(f"mq-namesrv-{n}.mq-namesrv:9876" for n in range(2))
        assert settings.storage.flush == "sync"


@pytest.mark.parametrize(("part", "replicas"), [("broker", 3), ("namesrv", 2)])
def test_members_are_probed_where_they_answer_and_keep_their_volumes(part: str, replicas: int) -> None:
    found = manifests()
    one = found["StatefulSet", f"mq-{part}"]["spec"]
    pod = one["template"]["spec"]
    container = pod["containers"][0]
    assert one["replicas"] == replicas
    assert one["podManagementPolicy"] == "Parallel"
    assert one["serviceName"] in {name for kind, name in found if kind == "Service"}
    labels = one["template"]["metadata"]["labels"].items()
    assert one["selector"]["matchLabels"].items() <= labels
    assert found["Service", f"mq-{part}"]["spec"]["selector"].items() <= labels
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    settings = found["Secret", "mq-config"]["stringData"]["n0.toml" if part == "broker" else "namesrv.toml"]
    assert f'metrics = "0.0.0.0:{ports["metrics"]}"' in settings
    assert f'listen = "0.0.0.0:{ports["clients"]}"' in settings
    volumes = {volume["name"] for volume in pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in one["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_one_member_at_a_time_is_moved_and_has_time_to_stop(tmp_path: Path) -> None:
    found = manifests()
    budget = found["PodDisruptionBudget", "mq-broker"]["spec"]
    spec = found["StatefulSet", "mq-broker"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert found["Service", "mq-broker"]["spec"]["publishNotReadyAddresses"], (
        "members find each other before that"
    )
    texts = found["Secret", "mq-config"]["stringData"]
    (tmp_path / "n0.toml").write_text(texts["n0.toml"].replace("@ADDRESS@", "10.1.2.3"))
    linger_s = load(tmp_path / "n0.toml").node.linger_s
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > linger_s + 30


def test_a_member_is_started_with_its_own_settings(tmp_path: Path) -> None:
    """The shell's line of the container, run with an imitation of `trivet` that shows what it was given."""
    container = manifests()["StatefulSet", "mq-broker"]["spec"]["template"]["spec"]["containers"][0]
    (line,) = container["args"]
    for name, text in manifests()["Secret", "mq-config"]["stringData"].items():
        (tmp_path / name).write_text(text)
    imitation = tmp_path / "trivet"
    imitation.write_text('#!/bin/sh\ncat "$3"\n')
    imitation.chmod(0o755)
    line = line.replace("/etc/trivet", str(tmp_path)).replace("/run/trivet", str(tmp_path))
    done = subprocess.run(
        [*container["command"], line],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOSTNAME": "mq-broker-1", "POD_ADDRESS": "10.1.2.9"},
    )
    assert 'id = "n1"' in done.stdout
    assert 'advertise = "10.1.2.9"' in done.stdout


if __name__ == "__main__":
    made = template(*VALUES)
    assert made.returncode == 0, made.stderr
    RENDERED.write_text(made.stdout)
