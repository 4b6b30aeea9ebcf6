"""Pauses between attempts grow to a limit, differ from client to client, and begin anew."""

from __future__ import annotations

import random

from broker.client.transport.pauses import Pauses


def test_means_grow_to_the_limit_and_begin_anew() -> None:
    pauses = Pauses(random.Random(1), 1, 10)
    assert [pauses.grow() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    pauses.reset()
    assert pauses.grow() == 1
    slow = Pauses(random.Random(1), 2, 5, growth=1.5)
    assert [slow.grow() for _ in range(4)] == [2, 3, 4.5, 5]


def test_each_pause_is_random_about_its_mean() -> None:
    drawn = []
    for seed in range(200):
        pauses = Pauses(random.Random(seed), 1, 3)
        drawn.append([pauses.next_s() for _ in range(3)])
    for mean, of_clients in zip((1, 2, 3), zip(*drawn, strict=True), strict=True):
        assert 0.5 * mean <= min(of_clients) < 0.6 * mean
        assert 1.4 * mean < max(of_clients) < 1.5 * mean
        assert len(set(of_clients)) == 200, "clients that failed together come back apart"
