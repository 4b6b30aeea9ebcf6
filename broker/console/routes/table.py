"""All questions and orders."""

from typing import Final

from broker.console.asking import Order, Question
from broker.console.routes import (
    accounts,
    clients,
    cluster,
    consumer_groups,
    dead_letters,
    messages,
    reports,
    settings,
    topics,
    waiting,
)

ROUTES: Final[tuple[Question | Order, ...]] = (
    *cluster.ROUTES,
    *topics.ROUTES,
    *messages.ROUTES,
    *consumer_groups.ROUTES,
    *dead_letters.ROUTES,
    *waiting.ROUTES,
    *clients.ROUTES,
    *settings.ROUTES,
    *accounts.ROUTES,
    *reports.ROUTES,
)
