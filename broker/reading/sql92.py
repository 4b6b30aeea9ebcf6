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

Here are the parser, the limits, and what is remembered. The words and signs are in sql92_words.py, what the parts mean
is in sql92_conditions.py, and how values compare in sql92_values.py.
"""

from collections.abc import Callable, Generator, Iterator
from functools import lru_cache, partial
from typing import Any, Final
from weakref import WeakValueDictionary

from broker.reading.sql92_conditions import Compiler, Lookup, Part, truth
from broker.reading.sql92_table import RULES, STATES
from broker.reading.sql92_values import TypeMismatchError
from broker.reading.sql92_words import END, SqlError, Token, tokens
from broker.remoting.steps import finished
from log.formats.properties import get_property, properties_by_name

EXPRESSION_LENGTH_MAX: Final = 8192

_TAKEN_APART_LENGTH: Final = 128
"""Characters of an expression from which it may well have ten names: so many searches cost what taking properties apart
costs (log/formats/properties.py), and each search costs more the longer they are."""

_REMEMBERED_LENGTH: Final = 256
"""Longer expressions are few, and of each hundreds of times its length are kept."""

_LONG_REMEMBERED: Final = 16
_TOKENS_AT_ONCE: Final = 300
"""Words and signs of an expression that are read in one step: some 5 ms."""

SEARCHES_MAX: Final = 128
"""CONTAINS in one expression: each may look through 32 KB of a message, which takes 0.1 ms."""

Predicate = Callable[[bytes], bool]
"""Tells whether a message with these properties, as a record holds them, is wanted."""

_METHODS: Final = {name: getattr(Compiler(), name) for *_, name in RULES if name.isidentifier()}


class _Parser:
    """Goes by the table (LALR(1)): each token is put on the stack, when all rules that it completes have been used."""

    __slots__ = ("_parts", "_states")

    def __init__(self) -> None:
        self._states = [0]
        self._parts: list[Any] = []
        """The values of all states but the first: tokens, nodes, lists of parts of what is above them."""

    def feed(self, token: Token) -> Part | None:
        """Takes the next token; the last one is the end, for which the whole is returned.

        Raises `SqlError` for a token that cannot come here, or a part of the right form that means nothing.
        """
        states, parts = self._states, self._parts
        while True:
            action = STATES[states[-1]].get(token.kind)
            if action is None:
                if token.kind == END:
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
                whole: Part = part
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
        # A new one each time: one that is kept would gather the tracebacks of all who raise it.
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
    # All who waited come here, whoever of them did the last step.
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
    for number, token in enumerate(tokens(expression), 1):
        # Each costs as much as the property is long, for each message: this is what a condition could be dear by.
        searches += token.kind == "PART" and token.text.lower() == "contains"
        if searches > SEARCHES_MAX:
            raise SqlError(token.at, f"at most {SEARCHES_MAX} CONTAINS are allowed")
        if number % _TOKENS_AT_ONCE == 0:
            yield
        whole = parser.feed(token)
    assert whole is not None, "the end is the last token"
    evaluate = truth(whole).evaluate

    lookup: Callable[[bytes], Lookup] = partial(partial, get_property)
    if len(expression) > _TAKEN_APART_LENGTH:
        lookup = _taken_apart

    def matches(properties: bytes) -> bool:
        try:
            return evaluate(lookup(properties)) is True
        except TypeMismatchError:
            return False

    return matches


_compile = lru_cache(maxsize=1024)(_compiled)
_long: dict[str, Predicate | SqlError] = {}
"""The outcome of the newest long expressions."""
_under_way: WeakValueDictionary[str, _Reading] = WeakValueDictionary()


def _taken_apart(properties: bytes) -> Lookup:
    return properties_by_name(properties).get
