"""SQL92 filters: conditions on the properties of messages (RocketMQ's `SelectorParser`).

The language is RocketMQ's selector language (`SelectorParser.jj`, ActiveMQ's without LIKE and arithmetic):

    or         = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison = unary { (">" | ">=" | "<" | "<=") unary | [NOT] BETWEEN unary AND unary
                       | [NOT] IN "(" string { "," string } ")"
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string }
    unary      = ("+" | "-" | NOT) unary | number | string | TRUE | FALSE | NULL | property | "(" or ")"

Words are read in any case, names of properties as they stand. Comments are `--` to the end of a line and `/* */`. NOT
binds as tightly as a sign: `NOT (a = 1)` needs its parentheses.

What an expression means is RocketMQ's, too (`ComparisonExpression` and its neighbours):

- Properties are texts. Beside a number a text is read as one of the number's own kind, beside TRUE or FALSE as a truth
  value. So `a > 5` reads integers of 32 bits, `a > 5000000000` those of 64, `a > 5.0` decimal fractions. Properties are
  compared with each other by `<` and its kin as decimal fractions. A text that is no such number is an error.
- Logic has three values. A comparison with an absent property is unknown; but `=` is unknown if its left side alone
  is absent, false if its right side alone is, and true if both are. NOT of unknown is unknown; OR and AND are decided
  by one side where they can be. CONTAINS and its kin are false for what is absent or no text, with NOT before them,
  too.
- A message is wanted if the whole is true: not if it is unknown, nor if its evaluation comes upon an error.

It differs where RocketMQ is plainly at fault: text behind a complete expression is refused instead of left unread;
0.0 is a number; `TRUE = a` means what `a = TRUE` does.

Expressions come from anybody who can reach the broker: length and depth are limited, the parser needs no recursion, and
AND and OR of any length are one step each. The parser's table is made of the grammar beforehand (`sql92_table`): to
compute it when the first condition comes would keep a node from everybody else for 0.1 s. A short expression looks its
few names up in the bytes of a record's properties; for a long one they are taken apart once, so that its names cost no
search each.
"""

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from broker.reading.sql92_table import KEYWORD, PASSED, RULES, STATES, WORD
from broker.remoting.steps import finished
from log.properties import get_property, properties_by_name

EXPRESSION_LENGTH_MAX: Final = 8192
DEPTH_MAX: Final = 64

_TAKEN_APART_LENGTH: Final = 128
"""Characters of an expression from which it may well have ten names: so many searches cost what taking properties apart
costs (log/properties.py), and each search costs more the longer they are."""

_REMEMBERED_LENGTH: Final = 256
"""Longer expressions are few, and of each hundreds of times its length are kept."""

_LONG_REMEMBERED: Final = 16
_TOKENS_AT_ONCE: Final = 300
"""Words and signs of an expression that are read in one step: some 5 ms."""

SEARCHES_MAX: Final = 128
"""CONTAINS in one expression: each may look through 32 KB of a message, which takes 0.1 ms."""

Predicate = Callable[[bytes], bool]
"""Tells whether a message with these properties, as a record holds them, is wanted."""

_Lookup = Callable[[bytes], bytes | None]
"""Returns the value of a message's property by name; None if it is absent or empty."""


class SqlError(ValueError):
    """An expression that cannot be used; `position` counts characters from 0. The client's fault, no retry helps."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at character {position + 1}: {reason}")
        self.position = position
        self.reason = reason


class _TypeMismatchError(Exception):
    """A message has a text where a number is needed."""


class _Long(int):
    """An integer literal beyond 32 bits: texts beside it are read with 64."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A compiled part, from character `at` on. Of a constant the `value` is known; a truth may be unknown (None)."""

    evaluate: Callable[[_Lookup], Any]
    depth: int = 1
    at: int = 0
    is_truth: bool = False
    is_constant: bool = False
    value: Any = None
    property: str = ""


def _constant(value: Any, at: int | None = None) -> _Node:
    return _Node(
        lambda _: value,
        at=at or 0,
        is_constant=True,
        value=value,
        is_truth=value is None or isinstance(value, bool),
    )


_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_FRACTION: Final = re.compile(
    r"\s*[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)\s*"
)


def _as_integer(text: str, like: int) -> int:
    bits = 63 if isinstance(like, _Long) else 31
    if len(text) <= 20 and _INTEGER.fullmatch(text):
        number = int(text)
        if -(1 << bits) <= number < 1 << bits:
            return number
    raise _TypeMismatchError


def _as_fraction(text: str) -> float:
    if len(text) > 400 or not _FRACTION.fullmatch(text):
        raise _TypeMismatchError
    return float(text.strip().rstrip("fFdD") if text.strip()[-1:] in "fFdD" else text)


def _compare(left: Any, right: Any) -> int:
    """-1, 0 or 1; kinds that cannot be compared are unequal (-1). Raises `_TypeMismatchError`."""
    if type(left) is not type(right):
        if isinstance(left, str):
            left = _like(left, right)
        elif isinstance(right, str):
            right = _like(right, left)
        elif isinstance(left, bool) or isinstance(right, bool):
            return -1
        elif isinstance(left, float) or isinstance(right, float):
            left, right = float(left), float(right)
    if left == right:
        return 0
    if left != left or right != right:  # NaN is equal to itself and above all others, as in Java
        return int(left != left) - int(right != right)
    return 1 if left > right else -1


def _like(text: str, other: Any) -> Any:
    if isinstance(other, bool):
        return text.lower() == "true"
    if isinstance(other, int):
        return _as_integer(text, other)
    return _as_fraction(text)


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


def _equals(left: _Node, right: _Node) -> _Node:
    left_of, right_of = left.evaluate, right.evaluate

    def evaluate(properties: _Lookup) -> bool | None:
        a, b = left_of(properties), right_of(properties)
        if a is None:
            return True if b is None else None
        return b is not None and _compare(a, b) == 0

    return _Node(evaluate, max(left.depth, right.depth) + 1, left.at, is_truth=True)


def _negated(node: _Node) -> _Node:
    inner = node.evaluate

    def evaluate(properties: _Lookup) -> bool | None:
        value: bool | None = inner(properties)
        return None if value is None else not value

    return _Node(evaluate, node.depth + 1, node.at, is_truth=True)


def _joined(nodes: tuple[_Node, ...], decides: bool) -> _Node:
    """AND (decided by False) or OR (decided by True) of several."""
    evaluations: tuple[Callable[[_Lookup], bool | None], ...] = tuple(node.evaluate for node in nodes)

    def evaluate(properties: _Lookup) -> bool | None:
        result: bool | None = not decides
        for evaluation in evaluations:
            value = evaluation(properties)
            if value is decides:
                return decides
            if value is None:
                result = None
        return result

    return _Node(evaluate, max(node.depth for node in nodes) + 1, nodes[0].at, is_truth=True)


def _truth(node: _Node) -> _Node:
    """Reads what stands where a condition must: a condition, or a property, which is a text and so never true."""
    if node.is_truth:
        return node
    if node.property:
        inner = node.evaluate
        return _Node(
            lambda properties: None if inner(properties) is None else False,
            node.depth + 1,
            node.at,
            is_truth=True,
        )
    raise _RefusalError(node.at, "a condition is needed here, not a value")


class _RefusalError(Exception):
    """An expression of the right form that means nothing; `at` is where it shows."""

    def __init__(self, at: int | None, reason: str) -> None:
        super().__init__(reason)
        self.at = at or 0


class _Token(NamedTuple):
    """A word or sign of an expression, which begins at character `at`."""

    kind: str
    text: str
    at: int


def _unquoted(token: _Token) -> str:
    return token.text[1:-1].replace("''", "'")


class _Compiler:
    """Called by the parser for each part that it has recognized."""

    def any_of(self, *nodes: _Node) -> _Node:
        return _limited(_joined(tuple(_truth(node) for node in nodes), True))

    def all_of(self, *nodes: _Node) -> _Node:
        return _limited(_joined(tuple(_truth(node) for node in nodes), False))

    def equal(self, left: _Node, right: _Node) -> _Node:
        for node in (left, right):
            if node.is_constant and node.value is None:
                raise _RefusalError(left.at, "NULL cannot be compared; IS NULL asks for it")
        if left.is_constant and right.is_constant and left.is_truth != right.is_truth:
            raise _RefusalError(left.at, f"{left.value} cannot be compared with {right.value}")
        return _limited(_equals(left, right))

    def not_equal(self, left: _Node, right: _Node) -> _Node:
        return _negated(self.equal(left, right))

    def is_null(self, node: _Node) -> _Node:
        inner = node.evaluate
        return _limited(
            _Node(lambda properties: inner(properties) is None, node.depth + 1, node.at, is_truth=True)
        )

    def is_not_null(self, node: _Node) -> _Node:
        return _negated(self.is_null(node))

    def ordered(self, left: _Node, order: _Token, right: _Node) -> _Node:
        for node in (left, right):
            if node.is_truth or (node.is_constant and isinstance(node.value, str)):
                raise _RefusalError(node.at, f"only numbers and properties can be compared by {order.text}")
        left_of, right_of, holds = left.evaluate, right.evaluate, _ORDERS[order.text]

        def evaluate(properties: _Lookup) -> bool | None:
            a = left_of(properties)
            b = None if a is None else right_of(properties)
            if b is None:
                return None
            if isinstance(a, str) and isinstance(b, str):
                a, b = _as_fraction(a), _as_fraction(b)
            return holds(_compare(a, b))

        return _limited(_Node(evaluate, max(left.depth, right.depth) + 1, left.at, is_truth=True))

    def between(self, node: _Node, low: _Node, high: _Node) -> _Node:
        parts = (
            self.ordered(node, _Token("ORDER", ">=", node.at), low),
            self.ordered(node, _Token("ORDER", "<=", node.at), high),
        )
        if low.is_constant and high.is_constant and _compare(low.value, high.value) > 0:
            raise _RefusalError(
                low.at, f"the lower bound {low.value} of BETWEEN is above the upper {high.value}"
            )
        return _joined(parts, False)

    def not_between(self, node: _Node, low: _Node, high: _Node) -> _Node:
        parts = (
            self.ordered(node, _Token("ORDER", "<", node.at), low),
            self.ordered(node, _Token("ORDER", ">", node.at), high),
        )
        return _joined(parts, True)

    def among(self, node: _Node, *texts: _Token) -> _Node:
        if not node.property:
            raise _RefusalError(texts[0].at, "IN needs a property before it")
        inner, wanted = node.evaluate, frozenset(_unquoted(text) for text in texts)

        def evaluate(properties: _Lookup) -> bool | None:
            value = inner(properties)
            return None if value is None else value in wanted

        return _Node(evaluate, node.depth + 1, node.at, is_truth=True)

    def not_among(self, node: _Node, *texts: _Token) -> _Node:
        return _negated(self.among(node, *texts))

    def part(self, node: _Node, kind: _Token, text: _Token) -> _Node:
        return self._part(node, kind, text, True)

    def not_part(self, node: _Node, kind: _Token, text: _Token) -> _Node:
        return self._part(node, kind, text, False)

    def _part(self, node: _Node, kind: _Token, text: _Token, wanted: bool) -> _Node:
        inner, holds, sought = node.evaluate, _PARTS[kind.text.lower()], _unquoted(text)

        def evaluate(properties: _Lookup) -> bool:
            value = inner(properties)
            return bool(sought) and isinstance(value, str) and holds(value, sought) is wanted

        return _limited(_Node(evaluate, node.depth + 1, node.at, is_truth=True))

    def negative(self, node: _Node) -> _Node:
        if node.is_constant:
            value = node.value
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return _Node(lambda _: None, at=node.at)
            return _constant(_Long(-value) if isinstance(value, _Long) else -value, node.at)
        return _Node(lambda _: None, node.depth + 1, node.at)

    def negation(self, node: _Node) -> _Node:
        return _limited(_negated(_truth(node)))

    def group(self, node: _Node) -> _Node:
        return node

    def text(self, token: _Token) -> _Node:
        return _constant(_unquoted(token), token.at)

    def integer(self, token: _Token) -> _Node:
        digits = token.text.rstrip("lL")
        if len(digits) > 19 or int(digits) >= 1 << 63:
            raise _RefusalError(token.at, f"{token.text[:40]} is beyond 64 bits")
        return _constant(int(digits) if int(digits) < 1 << 31 else _Long(digits), token.at)

    def fraction(self, token: _Token) -> _Node:
        value = float(token.text)
        if value == float("inf"):
            raise _RefusalError(token.at, f"{token.text[:40]} is beyond the largest number")
        return _constant(value, token.at)

    def true(self) -> _Node:
        return _constant(True)

    def false(self) -> _Node:
        return _constant(False)

    def null(self) -> _Node:
        return _constant(None)

    def property(self, token: _Token) -> _Node:
        name = token.text.encode()

        def evaluate(properties: _Lookup) -> str | None:
            value = properties(name)
            return None if value is None else value.decode("utf-8", "replace")

        return _Node(evaluate, at=token.at, property=token.text)


def _limited(node: _Node) -> _Node:
    if node.depth > DEPTH_MAX:
        raise _RefusalError(node.at, f"it is nested more than {DEPTH_MAX} deep")
    return node


_WORD: Final = re.compile(WORD)
_KEYWORD: Final = re.compile(KEYWORD)
_METHODS: Final = {name: getattr(_Compiler(), name) for *_, name in RULES if name.isidentifier()}
_END: Final = "$END"


def _tokens(expression: str) -> Iterator[_Token]:
    """Words and signs one by one. Raises `SqlError` at what begins none."""
    # With an end every comment has one; else it would be looked for again at each of many hyphens.
    text, at = expression + "\n", 0
    while at < len(text):
        found = _WORD.match(text, at)
        if found is None:
            raise SqlError(at, f"{text[at]!r} begins nothing that is known")
        kind, word = found.lastgroup, found[0]
        assert kind is not None, "each kind is a named group"
        if kind == "NAME" and (keyword := _KEYWORD.fullmatch(word)):
            kind = keyword.lastgroup or kind
        if kind not in PASSED:
            yield _Token(kind, word, at)
        at = found.end()
    yield _Token(_END, "", len(expression))


class _Parser:
    """Goes by the table (LALR(1)): each token is put on the stack, when all rules that it completes have been used."""

    __slots__ = ("_parts", "_states")

    def __init__(self) -> None:
        self._states = [0]
        self._parts: list[Any] = []
        """What the states but for the first stand for: tokens, nodes, lists of parts of what is above them."""

    def feed(self, token: _Token) -> _Node | None:
        """Takes the next token; the last one is the end, for which the whole is returned.

        Raises `SqlError` for a token that cannot come here, `_RefusalError`.
        """
        states, parts = self._states, self._parts
        while True:
            action = STATES[states[-1]].get(token.kind)
            if action is None:
                if token.kind == _END:
                    raise SqlError(token.at, "the expression ends too early")
                raise SqlError(token.at, f"{token.text[:40]!r} is not expected here")
            if action >= 0:
                states.append(action)
                parts.append(token)
                return None
            made, count, kept, method = RULES[~action]
            taken = parts[-count:]
            del states[-count:], parts[-count:]
            part = _part(taken, kept, method)
            if made == "start":
                whole: _Node = part
                return whole
            states.append(STATES[states[-1]][made])
            parts.append(part)


def _part(taken: list[Any], kept: tuple[int, ...], method: str) -> Any:
    """Returns what a rule makes of the parts that it takes."""
    if not method:
        return taken[kept[0]]
    parts: list[Any] = []
    for at in kept:
        if isinstance(taken[at], list):
            parts += taken[at]
        else:
            parts.append(taken[at])
    return parts if method == "*" else _METHODS[method](*parts)


def compile_sql(expression: str) -> Predicate:
    """The expression as a predicate; raises `SqlError`. The longest takes some tens of milliseconds."""
    if len(expression) <= _REMEMBERED_LENGTH:
        return _compile(expression)
    if expression not in _long:
        for _ in compile_in_steps(expression):
            pass
    outcome = _long[expression]
    if isinstance(outcome, SqlError):
        raise SqlError(outcome.position, outcome.reason)
    return outcome


def compile_in_steps(expression: str) -> Iterator[None]:
    """Reads a long expression, some milliseconds in a step; `compile_sql` of it takes no time right behind the last.

    Who asks for one that is being read does the next of the same steps: it is read once for all of them.
    """
    if len(expression) <= _REMEMBERED_LENGTH or expression in _long:
        return
    reading = _under_way.get(expression)
    if reading is None:
        reading = _under_way[expression] = _Reading(expression)
    for _ in reading.steps:
        yield
    _under_way.pop(expression, None)
    for outcome in reading.outcomes:
        _long[expression] = outcome
    while len(_long) > _LONG_REMEMBERED:
        del _long[next(iter(_long))]


class _Reading:
    """A long expression that is being read, as long as somebody waits for it."""

    __slots__ = ("__weakref__", "outcomes", "steps")

    def __init__(self, expression: str) -> None:
        self.outcomes: list[Predicate | SqlError] = []
        """The one outcome, behind the last of the steps."""
        self.steps = _reading(expression, self.outcomes)


def _reading(expression: str, outcomes: list[Predicate | SqlError]) -> Iterator[None]:
    try:
        predicate = yield from _compiling(expression)
    except SqlError as error:
        outcomes.append(error.with_traceback(None))
    else:
        outcomes.append(predicate)


def _compiled(expression: str) -> Predicate:
    return finished(_compiling(expression))


def _compiling(expression: str) -> Generator[None, None, Predicate]:
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise SqlError(
            EXPRESSION_LENGTH_MAX,
            f"the expression has {len(expression)} characters, at most {EXPRESSION_LENGTH_MAX} are allowed",
        )
    parser, whole = _Parser(), None
    searches = 0
    try:
        for number, token in enumerate(_tokens(expression), 1):
            searches += token.kind == "PART" and token.text.lower() == "contains"
            if searches > SEARCHES_MAX:
                raise _RefusalError(token.at, f"at most {SEARCHES_MAX} CONTAINS are allowed")
            if number % _TOKENS_AT_ONCE == 0:
                yield
            whole = parser.feed(token)
        assert whole is not None, "the end is the last token"
        evaluate = _truth(whole).evaluate
    except _RefusalError as error:
        raise SqlError(error.at, str(error)) from None

    lookup: Callable[[bytes], _Lookup] = partial(partial, get_property)
    if len(expression) > _TAKEN_APART_LENGTH:
        lookup = _taken_apart

    def matches(properties: bytes) -> bool:
        try:
            return evaluate(lookup(properties)) is True
        except _TypeMismatchError:
            return False

    return matches


_compile = lru_cache(maxsize=1024)(_compiled)
_long: dict[str, Predicate | SqlError] = {}
"""What came of the newest long expressions."""
_under_way: WeakValueDictionary[str, _Reading] = WeakValueDictionary()


def _taken_apart(properties: bytes) -> _Lookup:
    return properties_by_name(properties).get
