"""All questions and orders."""

from __future__ import annotations

from typing import Final

from broker.console.asking import Order, Question
from broker.console.routes import cluster

ROUTES: Final[tuple[Question | Order, ...]] = (*cluster.ROUTES,)
