"""The meanings of the parts of a condition in SQL92, each as a function of a message's properties.

The parser calls `Compiler` for each part that it has recognized, from the inside out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from broker.reading.sql92_values import Long, as_fraction, compare
from broker.reading.sql92_words import SqlError, Token

DEPTH_MAX: Final = 64

Lookup = Callable[[bytes], bytes | None]
"""Returns the value of a message's property by name; None if it is absent or empty."""


@dataclass(frozen=True, slots=True)
class Part:
    """A compiled part, from character `at` on. Of a constant the `value` is known; a truth may be unknown (None)."""

    evaluate: Callable[[Lookup], Any]
    depth: int = 1
    at: int = 0
    is_truth: bool = False
    is_constant: bool = False
    value: Any = None
    property: str = ""


def _constant(value: Any, at: int | None = None) -> Part:
    return Part(
        lambda _: value,
        at=at or 0,
        is_constant=True,
        value=value,
        is_truth=value is None or isinstance(value, bool),
    )


_ORDERS: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
}

_PARTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "contains": lambda text, wanted: wanted in text,
    "startswith": str.startswith,
    "endswith": str.endswith,
}


def _equals(left: Part, right: Part) -> Part:
    left_of, right_of = left.evaluate, right.evaluate

    def evaluate(properties: Lookup) -> bool | None:
        a, b = left_of(properties), right_of(properties)
        if a is None:
            return True if b is None else None
        return b is not None and compare(a, b) == 0

    return Part(evaluate, max(left.depth, right.depth) + 1, left.at, is_truth=True)


def _negated(node: Part) -> Part:
    inner = node.evaluate

    def evaluate(properties: Lookup) -> bool | None:
        value: bool | None = inner(properties)
        return None if value is None else not value

    return Part(evaluate, node.depth + 1, node.at, is_truth=True)


def _joined(nodes: tuple[Part, ...], decides: bool) -> Part:
    """AND (decided by False) or OR (decided by True) of several."""
    evaluations: tuple[Callable[[Lookup], bool | None], ...] = tuple(node.evaluate for node in nodes)

    def evaluate(properties: Lookup) -> bool | None:
        result: bool | None = not decides
        for evaluation in evaluations:
            value = evaluation(properties)
            if value is decides:
                return decides
            if value is None:
                result = None
        return result

    return Part(evaluate, max(node.depth for node in nodes) + 1, nodes[0].at, is_truth=True)


def truth(node: Part) -> Part:
    """Reads what stands where a condition must: a condition, or a property, which is a text and so never true.

    Raises SqlError for a value.
    """
    if node.is_truth:
        return node
    if node.property:
        inner = node.evaluate
        return Part(
            lambda properties: None if inner(properties) is None else False,
            node.depth + 1,
            node.at,
            is_truth=True,
        )
    raise SqlError(node.at, "a condition is needed here, not a value")


def _unquoted(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")


class Compiler:
    """Called by the parser for each part that it has recognized; a method is called as the part is in the grammar.

    Raises SqlError for a part that has the form of the language and no meaning: NULL that is compared, a number beyond
    64 bits, conditions within more conditions than are allowed.
    """

    def any_of(self, *nodes: Part) -> Part:
        return _limited(_joined(tuple(truth(node) for node in nodes), True))

    def all_of(self, *nodes: Part) -> Part:
        return _limited(_joined(tuple(truth(node) for node in nodes), False))

    def equal(self, left: Part, right: Part) -> Part:
        """Raises SqlError for a comparison with NULL, or of constants of two kinds."""
        for node in (left, right):
            if node.is_constant and node.value is None:
                raise SqlError(left.at, "NULL cannot be compared; IS NULL asks for it")
        if left.is_constant and right.is_constant and left.is_truth != right.is_truth:
            raise SqlError(left.at, f"{left.value} cannot be compared with {right.value}")
        return _limited(_equals(left, right))

    def not_equal(self, left: Part, right: Part) -> Part:
        return _negated(self.equal(left, right))

    def is_null(self, node: Part) -> Part:
        inner = node.evaluate
        return _limited(
            Part(lambda properties: inner(properties) is None, node.depth + 1, node.at, is_truth=True)
        )

    def is_not_null(self, node: Part) -> Part:
        return _negated(self.is_null(node))

    def ordered(self, left: Part, order: Token, right: Part) -> Part:
        """Raises SqlError for texts and truth values, which have no order here."""
        for node in (left, right):
            if node.is_truth or (node.is_constant and isinstance(node.value, str)):
                raise SqlError(node.at, f"only numbers and properties can be compared by {order.text}")
        left_of, right_of, holds = left.evaluate, right.evaluate, _ORDERS[order.text]

        def evaluate(properties: Lookup) -> bool | None:
            a = left_of(properties)
            b = None if a is None else right_of(properties)
            if b is None:
                return None
            if isinstance(a, str) and isinstance(b, str):
                a, b = as_fraction(a), as_fraction(b)
            return holds(compare(a, b))

        return _limited(Part(evaluate, max(left.depth, right.depth) + 1, left.at, is_truth=True))

    def between(self, node: Part, low: Part, high: Part) -> Part:
        """Raises SqlError for bounds in the wrong order, and as `ordered`."""
        parts = (
            self.ordered(node, Token("ORDER", ">=", node.at), low),
            self.ordered(node, Token("ORDER", "<=", node.at), high),
        )
        if low.is_constant and high.is_constant and compare(low.value, high.value) > 0:
            raise SqlError(low.at, f"the lower bound {low.value} of BETWEEN is above the upper {high.value}")
        return _joined(parts, False)

    def not_between(self, node: Part, low: Part, high: Part) -> Part:
        parts = (
            self.ordered(node, Token("ORDER", "<", node.at), low),
            self.ordered(node, Token("ORDER", ">", node.at), high),
        )
        return _joined(parts, True)

    def among(self, node: Part, *texts: Token) -> Part:
        """Raises SqlError unless a property stands before IN."""
        if not node.property:
            raise SqlError(texts[0].at, "IN needs a property before it")
        inner, wanted = node.evaluate, frozenset(_unquoted(text) for text in texts)

        def evaluate(properties: Lookup) -> bool | None:
            value = inner(properties)
            return None if value is None else value in wanted

        return Part(evaluate, node.depth + 1, node.at, is_truth=True)

    def not_among(self, node: Part, *texts: Token) -> Part:
        return _negated(self.among(node, *texts))

    def part(self, node: Part, kind: Token, text: Token) -> Part:
        return self._part(node, kind, text, True)

    def not_part(self, node: Part, kind: Token, text: Token) -> Part:
        return self._part(node, kind, text, False)

    def _part(self, node: Part, kind: Token, text: Token, wanted: bool) -> Part:
        inner, holds, sought = node.evaluate, _PARTS[kind.text.lower()], _unquoted(text)

        def evaluate(properties: Lookup) -> bool:
            value = inner(properties)
            return bool(sought) and isinstance(value, str) and holds(value, sought) is wanted

        return _limited(Part(evaluate, node.depth + 1, node.at, is_truth=True))

    def negative(self, node: Part) -> Part:
        if node.is_constant:
            value = node.value
            # The sign of what is no number makes it unknown, as in RocketMQ's UnaryExpression.
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return Part(lambda _: None, at=node.at)
            return _constant(Long(-value) if isinstance(value, Long) else -value, node.at)
        return Part(lambda _: None, node.depth + 1, node.at)

    def negation(self, node: Part) -> Part:
        return _limited(_negated(truth(node)))

    def group(self, node: Part) -> Part:
        return node

    def text(self, token: Token) -> Part:
        return _constant(_unquoted(token), token.at)

    def integer(self, token: Token) -> Part:
        """Raises SqlError for a number beyond 64 bits."""
        digits = token.text.rstrip("lL")
        # 64 bits have 19 digits at most: a longer text is not read at all, which could take long.
        if len(digits) > 19 or int(digits) >= 1 << 63:
            raise SqlError(token.at, f"{token.text[:40]} is beyond 64 bits")
        return _constant(int(digits) if int(digits) < 1 << 31 else Long(digits), token.at)

    def fraction(self, token: Token) -> Part:
        """Raises SqlError for a number beyond the largest double."""
        value = float(token.text)
        if value == float("inf"):
            raise SqlError(token.at, f"{token.text[:40]} is beyond the largest number")
        return _constant(value, token.at)

    def true(self) -> Part:
        return _constant(True)

    def false(self) -> Part:
        return _constant(False)

    def null(self) -> Part:
        return _constant(None)

    def property(self, token: Token) -> Part:
        name = token.text.encode()

        def evaluate(properties: Lookup) -> str | None:
            value = properties(name)
            return None if value is None else value.decode("utf-8", "replace")

        return Part(evaluate, at=token.at, property=token.text)


def _limited(node: Part) -> Part:
    if node.depth > DEPTH_MAX:
        raise SqlError(node.at, f"it is nested more than {DEPTH_MAX} deep")
    return node
