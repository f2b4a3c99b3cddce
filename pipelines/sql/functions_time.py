"""Functions over times. A TIMESTAMP is computed as its ms since 1970, a DATE as its days, a TIME as its ms of the day."""

from __future__ import annotations

from collections.abc import Callable
from zoneinfo import available_timezones

from pipelines.sql.error import Refusal
from pipelines.sql.functions import Call, Scalar, Value, shaped
from pipelines.sql.time_pattern import spark_problem
from pipelines.sql.types import BIGINT, DATE, INT, STRING, TIME, TIMESTAMP, SqlType
from pipelines.sql.zone_text import shows_zone, zoned_text

UNITS_MS = {"MILLISECONDS": 1, "SECONDS": 1_000, "MINUTES": 60_000, "HOURS": 3_600_000, "DAYS": 86_400_000}
UNITS_MS |= {unit.removesuffix("S"): ms for unit, ms in UNITS_MS.items()}
UNIT_FIRST = ("DATEADD", "DATESUB", "TIMEADD", "TIMESUB", "TIMESTAMPADD", "TIMESTAMPSUB")
UNITS = (*UNITS_MS, "WEEK", "WEEKS", "MONTH", "MONTHS", "YEAR", "YEARS")
DAY = 86_400_000


def _in_zone(ms: str, call: Call, index: int) -> str:
    """The moment as Spark's timestamp, moved so that UTC shows what the zone of argument `index` shows."""
    moment = f"timestamp_millis({ms})"
    return f"from_utc_timestamp({moment}, {call.want(index, 'string').text})" if len(call.arguments) > index else moment


def _out_of_zone(moment: str, call: Call, index: int) -> str:
    """Its inverse, as ms."""
    if len(call.arguments) > index:
        moment = f"to_utc_timestamp({moment}, {call.want(index, 'string').text})"
    return f"unix_millis({moment})"


def _pattern(call: Call, *, reads: bool = False) -> Value:
    """The second argument. One that is written out is looked at now."""
    pattern = call.want(1, "string")
    if pattern.words is not None and (problem := spark_problem(pattern.words, reads=reads)):
        raise Refusal(pattern.at, problem, "text that is no pattern is in quotes: 'yyyy''T''HH'")
    return pattern


def _format_timestamp(kind: str) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        ms = call.want(0, kind).text
        moment, pattern = _in_zone(ms, call, 2), _pattern(call)
        zone = call.arguments[2].words if len(call.arguments) > 2 else None
        if (
            zone is not None
            and pattern.words is not None
            and shows_zone(pattern.words)
            # The names are read from the disk each time.
            and zone in available_timezones()
        ):
            return call.result(zoned_text(moment, ms, pattern.words, zone), STRING)
        return call.result(f"date_format({moment}, {pattern.text})", STRING)

    return build


def _format_date(kind: str) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        days = call.want(0, kind).text
        return call.result(f"date_format(date_from_unix_date(CAST({days} AS INT)), {_pattern(call).text})", STRING)

    return build


def _format_time(call: Call) -> Value:
    return call.result(f"date_format(timestamp_millis({call.want(0, 'time').text}), {_pattern(call).text})", STRING)


def _parsed(call: Call) -> str:
    """The moment that the first argument is by the pattern of the second; NULL if it is none."""
    return f"try_to_timestamp({call.want(0, 'string').text}, {_pattern(call, reads=True).text})"


def _parse_timestamp(type_: SqlType) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        return call.result(_out_of_zone(_parsed(call), call, 2), type_)

    return build


def _parse_date(call: Call) -> Value:
    """NULL where the text has a time of the day other than midnight."""
    ms = f"unix_millis({_parsed(call)})"
    return call.result(f"CAST(CASE WHEN {ms} % {DAY} = 0 THEN {ms} div {DAY} END AS INT)", DATE)


def _string_to_date(call: Call) -> Value:
    return call.result(f"unix_date(CAST({_parsed(call)} AS DATE))", INT)


def _parse_time(call: Call) -> Value:
    return call.result(f"CAST(pmod(unix_millis({_parsed(call)}), {DAY}) AS INT)", TIME)


def _added(type_: SqlType, sign: int) -> Callable[[Call], Value]:
    """TIMESTAMPADD(unit, n, x) and its relatives."""

    def build(call: Call) -> Value:
        unit, count, value = call.want(0, "string"), call.want(1, "integer").text, call.want(2, type_.kind).text
        word = (unit.words or "").upper()
        if word not in UNITS:
            raise Refusal(unit.at, f"{call.name} needs a unit of time: {call.unaccepted()}", ", ".join(UNITS))
        if sign < 0:
            count = f"(- {count})"
        return call.result(_moved(type_, word.removesuffix("S"), count, value), type_)

    return build


def _moved(type_: SqlType, unit: str, count: str, value: str) -> str:
    if unit in ("MONTH", "YEAR"):
        months = count if unit == "MONTH" else f"({count} * 12)"
        if type_ == DATE:
            return f"unix_date(add_months(date_from_unix_date({value}), {months}))"
        moment = f"timestamp_millis({value})"
        return f"unix_millis({moment} + make_ym_interval(0, CAST({months} AS INT)))"
    ms = UNITS_MS.get(unit, 7 * DAY)
    if type_ == DATE:
        return f"CAST({value} + {count} * CAST({ms} AS BIGINT) div {DAY} AS INT)"
    if type_ == TIME:
        return f"CAST(pmod({value} + {count} * CAST({ms} AS BIGINT), {DAY}) AS INT)"
    return f"({value} + {count} * CAST({ms} AS BIGINT))"


def _convert_tz(call: Call) -> Value:
    """A moment, or a time as of the first of January 1970, as the clock of another zone shows it."""
    moment = call.want(0, "time" if call.arguments[0].type == TIME else "timestamp")
    source, target = call.want(1, "string").text, call.want(2, "string").text
    moved = f"unix_millis(from_utc_timestamp(to_utc_timestamp(timestamp_millis({moment.text}), {source}), {target}))"
    return call.result(f"CAST(pmod({moved}, {DAY}) AS INT)" if moment.type == TIME else moved, moment.type)


def _unix_timestamp(call: Call) -> Value:
    if not call.arguments:
        raise Refusal(
            call.at, "UNIX_TIMESTAMP gives another result each time, and a batch may run twice", "use ROWTIME"
        )
    return call.result(f"({call.want(0, 'timestamp').text})", BIGINT)


def _unix_date(call: Call) -> Value:
    if not call.arguments:
        raise Refusal(call.at, "UNIX_DATE gives another result each time, and a batch may run twice", "use ROWTIME")
    return call.result(f"({call.want(0, 'date').text})", INT)


TIMES: dict[str, Scalar] = {
    "CONVERT_TZ": Scalar(3, 3, _convert_tz),
    "DATEADD": Scalar(3, 3, _added(DATE, 1)),
    "DATESUB": Scalar(3, 3, _added(DATE, -1)),
    "DATETOSTRING": Scalar(2, 2, _format_date("integer")),
    "FORMAT_DATE": Scalar(2, 2, _format_date("date")),
    "FORMAT_TIME": Scalar(2, 2, _format_time),
    "FORMAT_TIMESTAMP": Scalar(2, 3, _format_timestamp("timestamp")),
    "FROM_DAYS": shaped("({0})", DATE, "integer"),
    "FROM_UNIXTIME": shaped("CAST({0} AS BIGINT)", TIMESTAMP, "integer"),
    "PARSE_DATE": Scalar(2, 2, _parse_date),
    "PARSE_TIME": Scalar(2, 2, _parse_time),
    "PARSE_TIMESTAMP": Scalar(2, 3, _parse_timestamp(TIMESTAMP)),
    "STRINGTODATE": Scalar(2, 2, _string_to_date),
    "STRINGTOTIMESTAMP": Scalar(2, 3, _parse_timestamp(BIGINT)),
    "TIMEADD": Scalar(3, 3, _added(TIME, 1)),
    "TIMESTAMPADD": Scalar(3, 3, _added(TIMESTAMP, 1)),
    "TIMESTAMPSUB": Scalar(3, 3, _added(TIMESTAMP, -1)),
    "TIMESTAMPTOSTRING": Scalar(2, 3, _format_timestamp("integer")),
    "TIMESUB": Scalar(3, 3, _added(TIME, -1)),
    "UNIX_DATE": Scalar(0, 1, _unix_date),
    "UNIX_TIMESTAMP": Scalar(0, 1, _unix_timestamp),
}
