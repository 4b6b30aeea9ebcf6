"""Makes broker/reading/sql92_table.py: `python -m tests.broker.reading.sql92_table`.

lark reads the grammar of SQL92 filters and computes the parser's table. What a broker needs of that is little, and is
written down as Python. States are numbered in the order in which they are reached, as lark's own order may change from
run to run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lark import Lark
from lark.grammar import Rule
from lark.lexer import BasicLexer, UnlessCallback
from lark.parsers.lalr_analysis import Shift

ROOM: Final = Path(__file__).parents[3] / "broker/reading"
TABLE: Final = ROOM / "sql92_table.py"

_HEAD: Final = '''"""The table by which SQL92 filters are parsed.

`python -m tests.broker.reading.sql92_table` has made it of sql92.lark, and a test holds it to that. Nothing is changed
here.

WORD      the kinds of words and signs: each is a named group
KEYWORD   the words that are no names, likewise
PASSED    the kinds that are passed over
RULES     of each: what it makes of how many parts, which of these are kept, and the compiler's method that takes them;
          "" where the only one is the result, "*" where they become parts of what is above
STATES    of each, by the kind of the next part: the state behind it, or the rule, as ~rule, that is complete before it
"""
# fmt: off
# ruff: noqa: E501

'''


def grammar() -> Lark:
    """The grammar, with its parser."""
    text = (ROOM / "sql92.lark").read_text()
    return Lark(text, parser="lalr", lexer="basic", maybe_placeholders=False)


def table(lark: Lark) -> str:
    """The text of the module."""
    lexer: Any = lark.parser.lexer
    assert isinstance(lexer, BasicLexer)
    words = lexer.scanner.terminals
    (name, keywords), *others = lexer.callback.items()
    assert name == "NAME", "sql92_words.py looks among names for keywords"
    assert not others
    assert isinstance(keywords, UnlessCallback)
    rules, states = _numbered(lark.parser.parser._parse_table)
    lines = [
        f"WORD = {_alternatives(words)!r}",
        f"KEYWORD = {_alternatives(keywords.scanner.terminals)!r}",
        f"PASSED = frozenset({sorted(lexer.ignore_types)!r})",
        "RULES: tuple[tuple[str, int, tuple[int, ...], str], ...] = (",
        *(f"    {_described(rule)!r}," for rule in rules),
        ")",
        "STATES: tuple[dict[str, int], ...] = (",
        *(f"    {actions!r}," for actions in states),
        ")",
    ]
    return _HEAD + "\n".join(lines) + "\n"


def _alternatives(terminals: list[Any]) -> str:
    return "|".join(f"(?P<{terminal.name}>{terminal.pattern.to_regexp()})" for terminal in terminals)


def _numbered(parse_table: Any) -> tuple[list[Rule], list[dict[str, int]]]:
    """Rules and states in the order in which they are reached from the first state."""
    reached = [parse_table.start_states["start"]]
    rules: list[Rule] = []
    states = []
    for state in reached:
        actions = {}
        for kind, (action, target) in sorted(parse_table.states[state].items()):
            known = reached if action is Shift else rules
            if target not in known:
                known.append(target)
            number = known.index(target)
            actions[kind] = number if action is Shift else ~number
        states.append(actions)
    return rules, states


def _described(rule: Rule) -> tuple[str, int, tuple[int, ...], str]:
    parts: list[Any] = list(rule.expansion)
    kept = tuple(at for at, part in enumerate(parts) if not (part.is_term and part.filter_out))
    origin = str(rule.origin.name)
    if origin.startswith("_"):
        action = "*"
    elif rule.options.expand1 and rule.alias is None:
        assert len(kept) == 1, "a rule without a method has one part"
        action = ""
    else:
        assert rule.alias is not None, f"no method is named for {rule}"
        action = rule.alias
    return origin, len(parts), kept, action


if __name__ == "__main__":
    TABLE.write_text(table(grammar()))
