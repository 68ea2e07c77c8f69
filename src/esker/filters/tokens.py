"""Text to tokens, in one pass; and errors that point at the place."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple

from esker.errors import InvalidFilter

LENGTH_MAX: Final = 4096
SHOWN: Final = 72  # characters of a filter in an error
OPERATORS: Final = ("==", "!=", "<=", ">=", "<", ">")
WORDS: Final = {"and", "or", "not", "in", "is", "null", "starts", "with", "true", "false"}
INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_DIGITS: Final = frozenset("0123456789")
_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-") | _DIGITS


class Token(NamedTuple):
    """A piece of a filter. `kind` is word, field, literal, end, an operator, or one of `( ) ,`."""

    kind: str
    value: Any
    at: int


def refuse(text: str, at: int, problem: str) -> InvalidFilter:
    """An error that shows the filter, with a mark below the place."""
    first = max(0, min(at - SHOWN // 2, len(text) - SHOWN))
    shown = "".join(c if c.isprintable() else " " for c in text[first : first + SHOWN])
    return InvalidFilter(f"where: {problem}\n  {shown}\n  {' ' * (at - first)}^", at=at)


def tokens(text: Any) -> list[Token]:
    """All tokens of a filter, the last of them `end`."""
    if not isinstance(text, str):
        raise InvalidFilter(f"where={text!r}: a filter is text, such as 'tag == \"eu\"'")
    if len(text) > LENGTH_MAX:
        raise InvalidFilter(f"where: {len(text)} characters; a filter has at most {LENGTH_MAX}")
    found: list[Token] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char.isspace():
            at += 1
            continue
        if char in "(),":
            token, at = Token(char, char, at), at + 1
        elif char in "\"'":
            value, end = _quoted(text, at)
            token, at = Token("literal", value, at), end
        elif char in _DIGITS or (char in "-+." and text[at + 1 : at + 2] in _DIGITS):
            token, at = _number(text, at)
        elif char in _NAME:
            token, at = _name(text, at)
        else:
            token, at = _operator(text, at)
        found.append(token)
    found.append(Token("end", None, len(text)))
    return found


def _operator(text: str, at: int) -> tuple[Token, int]:
    for known in OPERATORS:
        if text.startswith(known, at):
            return Token(known, known, at), at + len(known)
    if text[at] == "=":
        raise refuse(text, at, "'=' is not a comparison; two of them are: ==")
    if text[at] in "&|":
        raise refuse(text, at, f"{text[at]!r} joins nothing; write and, or")
    raise refuse(text, at, f"{text[at]!r} does not belong in a filter")


def _quoted(text: str, begin: int) -> tuple[str, int]:
    """Text in quotes, and where it ends."""
    quote, at = text[begin], begin + 1
    parts: list[str] = []
    while at < len(text):
        char = text[at]
        if char == quote:
            return "".join(parts), at + 1
        if char == "\\":
            escape = text[at + 1 : at + 2]
            if escape == "u":
                digits = text[at + 2 : at + 6]
                code = _hex(digits)
                if code is None:
                    raise refuse(text, at, "\\u has four hexadecimal digits of a character")
                parts.append(chr(code))
                at += 6
                continue
            if escape not in {*_ESCAPES, "\\", "'", '"'} or not escape:
                raise refuse(text, at, "a backslash is followed by one of \\ \" ' n t r 0 uXXXX")
            parts.append(_ESCAPES.get(escape, escape))
            at += 2
            continue
        if "\ud800" <= char <= "\udfff":
            raise refuse(text, at, "half of a character")
        parts.append(char)
        at += 1
    raise refuse(text, begin, "the quote is not closed")


def _hex(digits: str) -> int | None:
    if len(digits) < 4 or any(c not in "0123456789abcdefABCDEF" for c in digits):
        return None
    code = int(digits, 16)
    return None if 0xD800 <= code <= 0xDFFF else code


def _number(text: str, begin: int) -> tuple[Token, int]:
    end = begin + 1
    while end < len(text) and (
        text[end] in _NAME or text[end] == "." or (text[end] == "+" and text[end - 1] in "eE")
    ):
        end += 1
    written = text[begin:end]
    plain = written.lstrip("+-").replace("_", "")
    value: int | float | None = None
    with suppress(ValueError):
        value = int(written) if all(c in _DIGITS for c in plain) else float(written)
    if value is None or value != value or value in (float("inf"), float("-inf")):
        raise refuse(text, begin, f"{written!r} is not a number; text is put in quotes")
    if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
        raise refuse(text, begin, "a whole number has at most 64 bits")
    return Token("literal", value, begin), end


def _name(text: str, begin: int) -> tuple[Token, int]:
    """A word of the language, or a field: names with dots between them."""
    end = _word_end(text, begin)
    word = text[begin:end]
    dotted = text[end : end + 1] == "."
    if word.lower() in WORDS and not dotted:
        return _word(word.lower(), begin), end
    path = [word]
    while text[end : end + 1] == ".":
        at = end + 1
        if text[at : at + 1] in ("'", '"') and text[at : at + 1]:
            name, end = _quoted(text, at)
        else:
            end = _word_end(text, at)
            name = text[at:end]
            if not name:
                raise refuse(text, at, "a name is missing behind the dot")
        path.append(name)
    return Token("field", tuple(path), begin), end


def _word(word: str, at: int) -> Token:
    if word in ("true", "false"):
        return Token("literal", word == "true", at)
    return Token(word, word, at)


def _word_end(text: str, at: int) -> int:
    while at < len(text) and text[at] in _NAME:
        at += 1
    return at
