"""Tokens to a tree, by recursive descent that cannot go deep."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pyarrow.compute as pc

from esker.errors import InvalidFilter, nearest
from esker.filters.tokens import INT_MAX, INT_MIN, OPERATORS, Token, refuse, tokens
from esker.filters.tree import All, Any_, Compare, IsNull, Not, Path, Rows
from esker.format.columns import Columns

DEPTH_MAX: Final = 32
TERMS_MAX: Final = 256
FIELDS: Final = ("tag", "key", "node", "offset", "timestamp", "shard", "header", "json")
NESTED: Final = ("header", "json")
_NUMBERS: Final = ("offset", "shard")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Filter:
    """A filter that was understood. `str` gives back its text."""

    __slots__ = ("_root", "text")

    def __init__(self, text: str, root: Any) -> None:
        self.text = text
        self._root = root

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<esker filter {self.text!r}>"

    @property
    def reads_values(self) -> bool:
        """Whether values are read as JSON, which costs more than all the rest."""
        return bool(self._root.costly)

    def mask(self, columns: Columns, offsets: Any, shard: int) -> Any:
        """Which records match, as a boolean array without nulls."""
        return pc.fill_null(self._root.mask(Rows(columns, offsets, shard)), False)

    def keep(self, columns: Columns, offsets: Any, shard: int) -> Any:
        """As `mask`; None if all of them match."""
        made = self.mask(columns, offsets, shard)
        return None if pc.all(made).as_py() else made


def parse(text: Any) -> Filter:
    """Understand a filter, or raise InvalidFilter that says where and why not."""
    parser = _Parser(text)
    root = parser.whole()
    return Filter(text, _ask(root, tuple(sorted(parser.wanted))))


def _ask(node: Any, wanted: tuple[str, ...]) -> Any:
    """The same tree, in which everybody who reads JSON knows what all of them want of it."""
    match node:
        case Not(term):
            return Not(_ask(term, wanted))
        case All(terms):
            return All(tuple(_ask(term, wanted) for term in terms))
        case Any_(terms):
            return Any_(tuple(_ask(term, wanted) for term in terms))
    return node._replace(wanted=wanted)


class _Parser:
    def __init__(self, text: Any) -> None:
        self.text = text
        self.tokens = tokens(text)
        self.at = 0
        self.depth = 0
        self.terms = 0
        self.wanted: set[str] = set()

    # ---- tokens --------------------------------------------------------------------------

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def took(self, kind: str) -> bool:
        if self.next.kind == kind:
            self.at += 1
            return True
        return False

    def expect(self, kind: str, missing: str) -> Token:
        token = self.next
        if not self.took(kind):
            raise self.refuse(missing)
        return token

    def refuse(self, problem: str, token: Token | None = None) -> InvalidFilter:
        return refuse(self.text, (token or self.next).at, problem)

    # ---- the grammar ---------------------------------------------------------------------

    def whole(self) -> Any:
        if self.next.kind == "end":
            raise self.refuse('nothing to compare; a filter is such as tag == "eu"')
        root = self.either()
        if self.next.kind != "end":
            raise self.refuse(
                "a parenthesis too much" if self.next.kind == ")" else "and or or is missing here"
            )
        return root

    def either(self) -> Any:
        terms = [self.both()]
        while self.took("or"):
            terms.append(self.both())
        return terms[0] if len(terms) == 1 else Any_(tuple(terms))

    def both(self) -> Any:
        terms = [self.one()]
        while self.took("and"):
            terms.append(self.one())
        return terms[0] if len(terms) == 1 else All(tuple(terms))

    def one(self) -> Any:
        token = self.next
        if token.kind not in ("not", "("):
            return self.comparison()
        self.at += 1
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise self.refuse(f"more than {DEPTH_MAX} parentheses or nots in each other", token)
        if token.kind == "not":
            made: Any = Not(self.one())
        else:
            made = self.either()
            self.expect(")", "the parenthesis is not closed")
        self.depth -= 1
        return made

    def comparison(self) -> Any:
        path = self.field()
        self.terms += 1
        if self.terms > TERMS_MAX:
            raise self.refuse(f"more than {TERMS_MAX} comparisons")
        if self.took("is"):
            other = self.took("not")
            self.expect("null", "null is missing behind is")
            return Not(IsNull(path)) if other else IsNull(path)
        negated = self.took("not")
        made: Any
        token = self.next
        if self.took("in"):
            made = Compare(path, "in", self.several(path))
        elif self.took("starts"):
            self.expect("with", "with is missing behind starts")
            made = Compare(path, "starts with", self.beginning(path))
        elif token.kind in OPERATORS and not negated:
            self.at += 1
            made = Compare(path, token.kind, self.value(path, token.kind))
        else:
            how = "in, starts with" if negated else "==, !=, <, <=, >, >=, in, starts with, is null"
            raise self.refuse(f"a comparison is missing: {how}")
        return Not(made) if negated else made

    def field(self) -> Path:
        token = self.next
        if token.kind == "literal":
            raise self.refuse('the field comes first: json.amount > 100, tag == "eu"')
        path: Path = self.expect("field", "a field is missing: " + ", ".join(FIELDS)).value
        if path[0] not in FIELDS:
            hint = nearest(path[0], FIELDS)
            if path[0] == "value":  # as templates and SQL have it
                field = ".".join(["json", *(path[1:] or ["NAME"])])
                hint = f"a field of a JSON value is {field}"
            raise self.refuse(f"no field {path[0]!r}; {hint}", token)
        if path[0] not in NESTED and len(path) > 1:
            raise self.refuse(f"{path[0]} has no fields of its own", token)
        if path[0] in NESTED and len(path) == 1:
            raise self.refuse(f"which one? {path[0]}.NAME", token)
        if path[0] == "header" and len(path) > 2:
            raise self.refuse(
                "headers have no fields of their own; a name with dots is put in quotes: "
                f'header."{".".join(path[1:])}"', token,
            )  # fmt: skip
        if path[0] == "json":
            self.wanted.add(path[1])
        return path

    def several(self, path: Path) -> Any:
        self.expect("(", 'values in parentheses are missing behind in: in ("a", "b")')
        found = [self.value(path, "==")]
        while self.took(","):
            token = self.next
            found.append(self.value(path, "=="))
            if _kind(found[0]) is not _kind(found[-1]):
                raise self.refuse("all values are of one kind", token)
        self.expect(")", "the parenthesis is not closed")
        return tuple(found)

    def beginning(self, path: Path) -> Any:
        token = self.next
        if path[0] in _NUMBERS or path[0] == "timestamp":
            raise self.refuse(f"{path[0]} is a number, and starts with nothing")
        if token.kind != "literal" or not isinstance(token.value, str):
            raise self.refuse('text in quotes is missing: starts with "a"')
        return self.value(path, "==")

    def value(self, path: Path, how: str) -> Any:
        """What the field is compared with, as the column has it."""
        token = self.next
        if token.kind != "literal":
            raise self.refuse(_instead(token, how))
        self.at += 1
        value = token.value
        kind = path[0]
        if kind == "json":
            if isinstance(value, bool) and how not in ("==", "!="):
                raise self.refuse("true and false have no order", token)
            return value
        if kind in _NUMBERS:
            if type(value) is not int:
                raise self.refuse(f"{kind} is compared with a whole number", token)
            return value
        if kind == "timestamp":
            return self.time(token)
        if not isinstance(value, str):
            raise self.refuse(f"{'.'.join(path)} is compared with text, in quotes", token)
        return value if kind in ("tag", "node") else value.encode()

    def time(self, token: Token) -> int:
        value = token.value
        if type(value) is int:
            return value
        try:
            moment = datetime.fromisoformat(value.removeprefix("@"))
        except (AttributeError, TypeError, ValueError):
            raise self.refuse(
                'a time is such as "2026-11-15T10:00" (UTC unless it says otherwise), or '
                "microseconds since 1970", token,
            ) from None  # fmt: skip
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since = moment - _EPOCH
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return max(INT_MIN, min(INT_MAX, micros))


def _kind(value: Any) -> type:
    return float if type(value) in (int, float) else type(value)


def _instead(token: Token, how: str) -> str:
    if token.kind == "null":
        return "null equals nothing, not even null: is null, is not null"
    if token.kind == "field":
        name = ".".join(token.value)
        return f'a value is missing; text is put in quotes: {how} "{name}"'
    return "a value is missing: text in quotes, a number, true or false"
