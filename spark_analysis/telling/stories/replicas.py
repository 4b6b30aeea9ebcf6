"""Findings about what replicas recorded of themselves."""

import re
from collections.abc import Callable
from typing import Final

from spark_analysis.checking.verdict import Anomaly


def numbers_in(detail: str) -> list[int]:
    """The numbers of a finding's detail, in their order."""
    return [int(found) for found in re.findall(r"-?\d+", detail)]


def number_in(detail: str) -> int | None:
    """The last number of a finding's detail, which contradicts its position."""
    return next(reversed(numbers_in(detail)), None)


def nodes_of(key: str) -> str:
    """The nodes of a finding, as "n0, n1 and n2"."""
    *some, last = key.split(" and ")
    return f"{', '.join(some)} and {last}" if some else last


def _of_nodes(anomaly: Anomaly, two: str, more: str) -> str:
    """The nodes of a finding with the words for two nodes, or for some among more."""
    return f"{nodes_of(anomaly.key)} {two if anomaly.key.count(' and ') == 1 else more}"


def _two_leaders(anomaly: Anomaly) -> list[str]:
    return [
        (
            f"{nodes_of(anomaly.detail)} were {'both' if anomaly.detail.count(' and ') == 1 else 'all'} leader "
            f"in term {anomaly.position}."
        ),
        "A majority elects one leader a term; two of them can acknowledge different messages for one place.",
    ]


def _term_went_back(anomaly: Anomaly) -> list[str]:
    return [
        f"{anomaly.key} had been in term {number_in(anomaly.detail)} and was in term {anomaly.position} afterwards.",
        "A node that forgets its term forgets its vote, and can help to elect two leaders.",
    ]


def _commit_went_back(anomaly: Anomaly) -> list[str]:
    return [
        f"{anomaly.key} knew entries up to {number_in(anomaly.detail)} as committed.",
        f"Then, without a restart between, it knew only those up to {anomaly.position}.",
    ]


def _committed_truncated(anomaly: Anomaly) -> list[str]:
    return [
        f"{anomaly.key} knew entries up to {number_in(anomaly.detail)} as committed.",
        f"Then it removed all from {anomaly.position} on.",
        "What is committed may have been acknowledged, and must stay.",
    ]


def _leader_incomplete(anomaly: Anomaly) -> list[str]:
    assert anomaly.position is not None
    numbers = numbers_in(anomaly.detail)
    if len(numbers) > 2:
        leads, end, end_term, term, committed = numbers
        return [
            f"{anomaly.key} became leader of term {leads}.",
            f"Its log ended with entry {end}, of term {end_term}.",
            f"Entry {committed}, of term {term}, had been committed, and in a log terms never go back.",
            "A leader makes all others agree with its own log: what it lacks is lost.",
        ]
    return [
        f"{anomaly.key} became {anomaly.detail.split(';', maxsplit=1)[0]}.",
        f"Its log ended before entry {anomaly.position}.",
        f"Entries up to {number_in(anomaly.detail)} had been committed in an earlier term.",
        "A leader makes all others agree with its own log: what it lacks is lost.",
    ]


def _log_mismatch(anomaly: Anomaly) -> list[str]:
    return [
        (
            f"{_of_nodes(anomaly, 'hold different', 'do not all hold the same')} bytes at entry {anomaly.position}, "
            "under the same term."
        ),
        "An index and a term name one entry.",
    ]


def _prefix_mismatch(anomaly: Anomaly) -> list[str]:
    return [
        (
            f"{_of_nodes(anomaly, 'have committed different', 'have not all committed the same')} bytes up to "
            f"entry {anomaly.position}."
        ),
        "The replicas are no copies of each other any more.",
    ]


REPLICA_STORIES: Final[dict[str, Callable[[Anomaly], list[str]]]] = {
    "two-leaders": _two_leaders,
    "term-went-back": _term_went_back,
    "commit-went-back": _commit_went_back,
    "committed-truncated": _committed_truncated,
    "leader-incomplete": _leader_incomplete,
    "log-mismatch": _log_mismatch,
    "prefix-mismatch": _prefix_mismatch,
}
