"""TLS and accounts in Spark: who has the authority's certificate and an account writes and reads, nobody else does."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from broker.client.admin import AdminClient
from broker.settings.tables import AclSettings, NameServerSettings, NodeSettings, Settings, TlsSettings
from tests.broker.shell.certificates import Certificates
from tests.broker.shell.servers import Servers, running
from tests.broker.shell.test_access import ACCOUNTS, OPERATOR, ORDERS
from tests.broker.spark_source.test_sink import in_spark
from tests.cluster.support import repeated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECRET = "a secret of the brokers"
TOPIC = "orders"


@contextlib.asynccontextmanager
async def secured(folder: Path, certificates: Certificates) -> AsyncIterator[Servers]:
    """A name server and a broker that take encrypted connections alone, and requests that an account has signed."""
    certificate, key = certificates.issue()
    accounts = folder / "accounts.toml"
    accounts.write_text(ACCOUNTS)

    def change(settings: Settings) -> Settings:
        node: NodeSettings = msgspec.structs.replace(settings.node, registration_secret=SECRET)
        tls = TlsSettings(
            mode="enforcing",
            certificate=certificate,
            key=key,
            name_server_ca=certificates.authority(),
        )
        return msgspec.structs.replace(settings, node=node, tls=tls, acl=AclSettings(file=str(accounts)))

    name_server = NameServerSettings(
        kv_config_path="",
        registration_secret=SECRET,
        acl_file=str(accounts),
        tls_mode="enforcing",
        tls_certificate=certificate,
        tls_key=key,
    )
    async with running(folder, name_server=name_server, change=change) as servers:
        await servers.wait_leader()
        tls = certificates.client()
        async with AdminClient(servers.name_server, tls=tls, credentials=OPERATOR) as admin:
            await repeated(partial(admin.create_topic, TOPIC, queues=2))
        yield servers


async def test_a_secured_cluster_is_written_and_read_by_those_alone_whom_it_knows(
    spark: SparkSession, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    async with secured(tmp_path, certificates) as servers:
        who = {"accessKey": ORDERS.access_key, "secretKey": ORDERS.secret_key}
        plain = {"nameServers": servers.name_server, **who}
        known = {**plain, "tlsCa": certificates.authority()}

        def load(options: dict[str, str], group: str = "orders-group") -> DataFrame:
            given = {"timeoutMs": "500", **options, "subscribe": TOPIC, "group": group}
            return spark.read.format("trivet").options(**given).load()

        def check() -> None:
            frame = spark.range(10).selectExpr("cast(id as string) as body")
            frame.write.format("trivet").mode("append").options(**known, topic=TOPIC).save()
            rows = load(known | {"timeoutMs": "60000"}).collect()
            assert sorted(bytes(row["body"]) for row in rows) == [b"%d" % number for number in range(10)]
            for options, told in [
                (known | {"secretKey": "another"}, "ReadError: .* answered code 16: .*signature"),
                (
                    {**plain, "tls": "true", "timeoutMs": "600000"},
                    "ReadError: .*the server's certificate is not good",
                ),
                (plain, "ReadError: no response within 0.5 s; last: no name server answered"),
            ]:
                with pytest.raises(Exception, match=told):
                    load(options).count()
            with pytest.raises(Exception, match=r"ReadError: .* needs SUB on group 'payroll'"):
                load(known, group="payroll").count()

        await in_spark(spark, check)
