"""Filters: which records somebody wants, as text that is never executed.

    tag == "eu" and header.kind == "paid" and json.amount > 100

A filter compares what a record has with what stands in the text, and joins comparisons with and,
or, not and parentheses. That is all of it: no functions, no arithmetic and no patterns, so whoever
may write a filter may do nothing else with it, and none can take longer than its length.

    what        tag, node           text
                key, header.NAME    bytes, compared with text by their UTF-8
                offset, shard       whole numbers
                timestamp           a time, in ISO 8601, or microseconds since 1970
                json.PATH.TO.FIELD  a field of the value, if that is a JSON object
    how         == != < <= > >=     in ("a", "b")     starts with "a"     is null
                not in (...), not starts with, is not null
    with        "text" or 'text', numbers, true, false

What a record lacks is null, and so is a field of a value that is no JSON, and to a comparison a
field of another kind than what it is compared with. A comparison with null is neither true nor
false; `not` does not make it true, and a record is taken only if the whole is true. `is null` asks.

A name with other characters than letters, digits, `_` and `-` is put in quotes: json."unit price".

    tokens.py   text to tokens, and errors that point at the place
    parser.py   tokens to a tree
    tree.py     the tree, and what it makes of a batch: a mask, by Arrow
"""

from esker.filters.parser import Filter, parse

__all__ = ["Filter", "parse"]
