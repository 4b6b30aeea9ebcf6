"""Draws the dashboard of a cluster that has a killed leader, a full disk and a consumer that lags.

    mount -t tmpfs -o size=420m tmpfs /mnt/small
    python -m tests.monitoring.picture /mnt/small docs/images/dashboard.svg

Three brokers, the store of one of them on the small disk, are scraped by Prometheus for four and a half minutes. Then
each panel of docs/monitoring/dashboard.json is asked for as Grafana asks, and drawn. The drawing is this module's, not
Grafana's: what it shows is what Prometheus answers.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from broker.client.admin import AdminClient
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import ClientError
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.settings.tables import Settings, StorageSettings
from broker.tools.cluster.layout import LocalClusterOptions
from broker.tools.cluster.local import LocalCluster
from tests.monitoring.dashboard import Panel, panels
from tests.monitoring.prometheus import ALERTS, Server, serving

TOPIC: Final = "orders"
QUEUES: Final = 4
ON_SMALL_DISK: Final = "n1"
SCRAPE_S: Final = 2
WHOLE_S: Final = 270
KILL_S, RESTART_S, LAG_S, FILL_S, FREE_S = 60, 110, 40, 150, 215

FULL: Final = "the leader's disk fills"

COLUMN: Final = 52
"""Width of one of Grafana's 24 columns; a row has half of it."""
COLOURS: Final = ("#3274d9", "#e0752d", "#299c46", "#a352cc", "#c4162a", "#8f8f00", "#12939a", "#e24d8f")
LEGENDS_MAX: Final = 6


# ------------------------------------------------------------------ what happens


async def produce(name_server: str) -> None:
    """Sends a hundred messages a second, for ever; those that fail are left to the dashboard."""
    async with (
        Producer(name_server, group="shop", send_timeout_s=2) as producer,
        trio.open_nursery() as nursery,
    ):

        async def send() -> None:
            try:
                await producer.send(Message(TOPIC, b"x" * 400))
            except ClientError:
                pass

        while True:
            for _ in range(10):
                nursery.start_soon(send)
            await trio.sleep(0.1)


async def consume(name_server: str, group: str, stops_after_s: float) -> None:
    """Takes all messages and commits, until the time is over: then it takes no more, and lags."""
    async with PullConsumer(name_server, group=group) as consumer:
        consumer.assign(dict.fromkeys(await consumer.queues(TOPIC), 0))
        until = trio.current_time() + stops_after_s
        while trio.current_time() < until:
            try:
                await consumer.poll()
                await consumer.commit()
            except ClientError:
                await trio.sleep(0.5)


async def troubles(cluster: LocalCluster, small_disk: Path, marks: list[tuple[float, str]]) -> None:
    """The leader dies and comes back; then the node on the small disk leads, and its disk fills."""

    def mark(text: str) -> None:
        print(text, flush=True)
        marks.append((time.time(), text))

    began = trio.current_time()
    await trio.sleep_until(began + LAG_S)
    mark("a consumer stops")
    await trio.sleep_until(began + KILL_S)
    leader = (await cluster.leader()).id
    await cluster.kill(leader)
    mark("leader killed")
    await trio.sleep_until(began + RESTART_S)
    cluster.start(leader)
    mark("it is back")
    await trio.sleep_until(began + FILL_S)
    async with AdminClient(cluster.name_server_address) as admin:
        await lead(cluster, admin)
    filler = small_disk / "filler"
    usage = os.statvfs(small_disk)
    filler.write_bytes(bytes(max(0, usage.f_bavail * usage.f_frsize - (4 << 20))))
    mark(FULL)
    await trio.sleep_until(began + FREE_S)
    filler.unlink()
    mark("room again")
    await trio.sleep_until(began + WHOLE_S)


async def lead(cluster: LocalCluster, admin: AdminClient) -> None:
    while (await cluster.leader()).id != ON_SMALL_DISK:
        try:
            await admin.transfer_leadership(ON_SMALL_DISK)
        except ClientError as error:
            print(f"not yet: {error}", flush=True)
        await trio.sleep(1)


async def run(small_disk: Path, picture: Path) -> None:
    """Runs it all, and writes the picture."""
    marks: list[tuple[float, str]] = []

    def change(settings: Settings) -> Settings:
        storage = settings.storage
        if settings.node.id == ON_SMALL_DISK:
            storage = msgspec.structs.replace(storage, path=str(small_disk / "store"))
        retention = msgspec.structs.replace(settings.retention, interval_ms=1000)
        return msgspec.structs.replace(settings, storage=storage, retention=retention)

    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        options = LocalClusterOptions(
            folder / "cluster",
            storage=StorageSettings(data_file_bytes=32 << 20, consume_queue_file_bytes=20 << 10),
            metrics=True,
            change=change,
        )
        async with LocalCluster(options) as cluster:
            await cluster.wait_ready()
            address = cluster.name_server_address
            async with AdminClient(address) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
            configuration = often(folder / "cluster" / "prometheus.yml")
            with serving(configuration, folder / "data") as prometheus:
                begin = time.time()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(produce, address)
                    nursery.start_soon(consume, address, "billing", float("inf"))
                    nursery.start_soon(consume, address, "reports", LAG_S)
                    await troubles(cluster, small_disk, marks)
                    nursery.cancel_scope.cancel()
                drawn = draw(prometheus, begin + 10, time.time() - 2, marks)
                await trio.to_thread.run_sync(picture.write_text, drawn)


def often(written: Path) -> Path:
    """Changes Prometheus' configuration, as the cluster has written it, to alerts and shorter intervals."""
    text = written.read_text(encoding="utf-8").replace("scrape_interval: 5s", f"scrape_interval: {SCRAPE_S}s")
    head = f"global: {{evaluation_interval: {SCRAPE_S}s}}\nrule_files: [{ALERTS}]\n"
    written.write_text(head + text, encoding="utf-8")
    return written


# ------------------------------------------------------------------ how it is drawn


def draw(prometheus: Server, begin: float, end: float, marks: list[tuple[float, str]]) -> str:
    """Returns the dashboard from `begin` to `end`, Unix times, as SVG; its numbers are those while the disk is full."""
    drawn = panels(rate_interval=f"{5 * SCRAPE_S}s")
    height = max(panel.y + panel.height for panel in drawn) * COLUMN // 2 + 46
    now = next(at for at, text in marks if text == FULL) + (FREE_S - FILL_S) / 2
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{24 * COLUMN}" height="{height}" '
            'font-family="sans-serif" font-size="11">'
        ),
        '<rect width="100%" height="100%" fill="#f4f5f8"/>',
    ]
    for panel in drawn:
        x, y = panel.x * COLUMN, panel.y * COLUMN // 2
        width, tall = panel.width * COLUMN, panel.height * COLUMN // 2
        parts.append(f'<g transform="translate({x},{y})">')
        if panel.kind == "row":
            parts.append(f'<text x="8" y="18" font-size="13" font-weight="bold">{escape(panel.title)}</text>')
        else:
            parts.append(f'<rect x="3" y="3" width="{width - 6}" height="{tall - 6}" rx="3" fill="#fff"/>')
            parts.append(f'<text x="12" y="20" font-weight="bold">{escape(panel.title)}</text>')
            if panel.kind == "stat":
                parts.append(number(prometheus, panel, now, width, tall))
            else:
                parts.append(lines(prometheus, panel, (begin, end), marks, (width, tall)))
        parts.append("</g>")
    told = ", ".join(f"{place} at {round(at - begin)} s: {text}" for place, (at, text) in enumerate(marks, 1))
    firing = alerts(prometheus, now)
    parts.append(f'<text x="8" y="{height - 26}" fill="#555">{escape(told)}</text>')
    parts.append(
        f'<text x="8" y="{height - 10}" fill="#555">The numbers above are those at {round(now - begin)} s, when '
        f"these alerts fired: {escape(firing)}.</text></svg>\n"
    )
    return "\n".join(parts)


def alerts(prometheus: Server, at: float) -> str:
    """The names of the alerts that fire at a time."""
    found: Any = prometheus.get("query", query='ALERTS{alertstate="firing"}', time=str(at))
    return ", ".join(sorted({one["metric"]["alertname"] for one in found["result"]})) or "none"


def number(prometheus: Server, panel: Panel, at: float, width: int, tall: int) -> str:
    """A panel with one number, in the colour of its step."""
    found: Any = prometheus.get("query", query=panel.targets[0].expression, time=str(at))
    values = [float(one["value"][1]) for one in found["result"]]
    if not values:
        return f'<text x="{width / 2}" y="{tall / 2 + 20}" text-anchor="middle">no data</text>'
    colour = next((colour for value, colour in reversed(panel.steps) if values[0] >= value), "black")
    return (
        f'<text x="{width / 2}" y="{tall / 2 + 26}" font-size="34" text-anchor="middle" fill="{colour}">'
        f"{shown(values[0], panel.unit)}</text>"
    )


def lines(
    prometheus: Server,
    panel: Panel,
    span: tuple[float, float],
    marks: list[tuple[float, str]],
    size: tuple[int, int],
) -> str:
    """A panel with a line for each answer to its questions."""
    begin, end = span
    series: list[tuple[str, list[tuple[float, float]]]] = []
    for target in panel.targets:
        found: Any = prometheus.get(
            "query_range", query=target.expression, start=str(begin), end=str(end), step=str(SCRAPE_S)
        )
        for one in found["result"]:
            legend = target.legend
            for label, value in one["metric"].items():
                legend = legend.replace("{{" + label + "}}", value)
            points = [(float(at), float(value)) for at, value in one["values"]]
            series.append((legend, [point for point in points if isfinite(point[1])]))
    # Those with the largest values get a colour and a legend first.
    series.sort(key=lambda one: -max((value for _, value in one[1]), default=0.0))
    left, right, top, bottom = 58, size[0] - 16, 34, size[1] - 46
    highest = max((value for _, points in series for _, value in points), default=0.0) or 1.0
    parts: list[str] = []
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - top)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}" stroke="#e3e3e8"/>')
        text = shown(share * highest, panel.unit)
        parts.append(f'<text x="{left - 5}" y="{y + 4}" text-anchor="end" fill="#555">{text}</text>')

    def across(at: float) -> float:
        return left + (at - begin) / (end - begin) * (right - left)

    for place, (at, text) in enumerate(marks, 1):
        if begin <= at <= end:
            x = f"{across(at):.1f}"
            parts.append(
                f'<line x1="{x}" x2="{x}" y1="{top - 6}" y2="{bottom}" stroke="#999" stroke-dasharray="3 3">'
                f"<title>{escape(text)}</title></line>"
                f'<text x="{x}" y="{top - 8}" font-size="9" text-anchor="middle" fill="#777">{place}</text>'
            )
    for place, (_, points) in enumerate(series):
        path, before = "", float("-inf")
        for at, value in points:
            # A gap: the node did not answer.
            step = "L" if at - before <= 1.5 * SCRAPE_S else "M"
            path += f"{step}{across(at):.1f},{bottom - value / highest * (bottom - top):.1f}"
            before = at
        colour = COLOURS[place % len(COLOURS)]
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    along, y = 12.0, float(size[1] - 26)
    for place, (legend, _) in enumerate(series[:LEGENDS_MAX]):
        wide = 22 + 6 * len(legend)
        if along + wide > size[0] - 8 and along > 12:
            along, y = 12.0, y + 14
        colour = COLOURS[place % len(COLOURS)]
        parts.append(f'<rect x="{along}" y="{y - 4}" width="10" height="3" fill="{colour}"/>')
        parts.append(f'<text x="{along + 14}" y="{y}" fill="#333">{escape(legend)}</text>')
        along += wide
    return "\n".join(parts)


def shown(value: float, unit: str) -> str:
    """A number as an axis has it."""
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    suffix = {"s": " s", "cps": "/s", "Bps": "B/s", "bytes": "B"}.get(unit, "")
    if unit == "s" and 0 < value < 1:
        return f"{1000 * value:.3g} ms"
    for factor, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= factor:
            return f"{value / factor:.3g}{letter}{suffix.strip()}"
    return f"{value:.3g}{suffix}"


if __name__ == "__main__":
    trio.run(run, Path(sys.argv[1]), Path(sys.argv[2]))
