"""How the server lets the sites of a federation agree on a schema: two exchanges, and the result to all.

The first exchange asks which columns each table has and of what kind they are, the second for sums and words. Both are
merged by the code that makes the schema of a simulation, so that the schema is the same. Every site then checks its own
table against it. The server keeps it as ``schema.json`` in its folder: sites that come later are sent this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from coterie.data import Schema
from coterie.data.tables.agreement import agree_on_kinds, agree_on_schema
from coterie.data.tables.reading import Reading
from coterie.deploy.deployment import SCHEMA
from coterie.deploy.order import Order
from coterie.errors import DataError, FederationError
from coterie.terminal import line
from coterie.wire import codec
from coterie.wire.remote import Exchange, PackedReplies
from coterie.wire.reply_checks import open_reply
from coterie.wire.schema_messages import OF_ONE_SITE, pack_columns, pack_schema, pack_sums, read_facts, read_sums

T = TypeVar("T")


@dataclass(frozen=True)
class Agreement:
    """The schema of a federation's tables, and the problem of each site whose table does not fit it."""

    schema: Schema
    problems: Mapping[str, str]


def agree(order: Order, sites: Exchange, wanting: Sequence[int]) -> Agreement:
    """Return the schema of the sites that want one, by position: the server's, or one that they agree on now."""
    file = schema_file(order)
    is_new = not file.is_file()
    schema = _new_schema(order, sites, wanting) if is_new else Schema.load(file)
    if is_new:  # on disk before any site has it
        schema.save(file)
    packed = sites(dict.fromkeys(wanting, pack_schema(order.run, schema)))
    _, problems = _read(order, packed, lambda header: None)
    refused = {order.sites[at] for at in packed.answers} & problems.keys()
    if is_new and len(refused) == len(wanting):  # nobody has it: the next run agrees on another one
        file.unlink()
    return Agreement(schema, problems)


def schema_file(order: Order) -> Path:
    """Return the file of the schema in the server's folder, which may not be there yet."""
    return Path(order.board).with_name(SCHEMA) if order.schema is None else Path(order.schema)


def _new_schema(order: Order, sites: Exchange, wanting: Sequence[int]) -> Schema:
    """Let sites agree on a schema; a site that does not answer, or refuses, has no part in it."""
    told, problems = _ask(
        order, sites, wanting, pack_columns(order.run), lambda header: read_facts(header.get("facts"))
    )
    _require(told, problems)
    facts = {name: own for name, (own, _) in told.items()}
    reading = common_reading({name: own for name, (_, own) in told.items()})
    try:
        kinds = agree_on_kinds(facts, reading)
        asked = [at for at in wanting if order.sites[at] in told]
        sums, problems = _ask(
            order, sites, asked, pack_sums(order.run, kinds), lambda header: read_sums(header.get("sums"), kinds)
        )
        _require(sums, problems)
        return agree_on_schema({name: facts[name] for name in sums}, sums, kinds, reading)
    except DataError as error:
        raise FederationError(f"the sites cannot agree on a schema: {error}") from None


def common_reading(told: Mapping[str, Reading]) -> Reading:
    """Return how all sites read their tables; refuse sites that read them differently.

    Columns that one site leaves out are left out of later files too.
    """
    first, own = next(iter(told.items()))
    for name, reading in told.items():
        for each in fields(Reading):
            ours, theirs = getattr(own, each.name), getattr(reading, each.name)
            if each.name not in (*OF_ONE_SITE, "ignore") and ours != theirs:
                key = each.name.replace("_", "-")
                raise FederationError(
                    f"{name} has {key} {line(theirs, 100)} in its site.toml where {first} has {line(ours, 100)}; "
                    "all sites need the same"
                )
    ignored = dict.fromkeys(column for reading in told.values() for column in reading.ignore)
    return replace(own, ignore=tuple(column for column in ignored if column not in own.roles))


def _ask(
    order: Order, sites: Exchange, positions: Sequence[int], request: bytes, read: Callable[[Mapping[str, Any]], T]
) -> tuple[dict[str, T], dict[str, str]]:
    """Ask sites the same; return what ``read`` makes of the headers of their replies, and the problem of the others."""
    return _read(order, sites(dict.fromkeys(positions, request)), read)


def _read(
    order: Order, packed: PackedReplies, read: Callable[[Mapping[str, Any]], T]
) -> tuple[dict[str, T], dict[str, str]]:
    """Return what ``read`` makes of the headers of the replies, and the problem of each site that gave none."""
    found = dict[str, T]()
    problems = {order.sites[at]: line(why, codec.LONGEST_PROBLEM) for at, why in packed.missing.items()}
    for at in sorted(packed.answers):
        try:
            found[order.sites[at]] = read(open_reply(packed.answers[at])[1])
        except FederationError as error:
            problems[order.sites[at]] = line(error, codec.LONGEST_PROBLEM)
    return found, problems


def _require(told: Mapping[str, object], problems: Mapping[str, str]) -> None:
    if not told:
        why = "; ".join(f"{name}: {each}" for name, each in list(problems.items())[:3])
        raise FederationError(f"no site tells of its columns, so no schema can be agreed on; {why}")
