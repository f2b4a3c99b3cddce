"""Functions over numbers beyond those in `functions.py`."""

from __future__ import annotations

from pipelines.sql.error import Refusal
from pipelines.sql.functions import Call, Scalar, Value, at_most, logarithm, shaped
from pipelines.sql.types import DOUBLE, array_of, decimal

MILES = ("mi", "mile", "miles")
KILOMETRE_RADIUS, MILE_RADIUS = "6371.0D", "3959.0D"
KILOMETRES = ("", "km", "kilometer", "kilometers", "kilometre", "kilometres")
# Steps of a GENERATE_SERIES.
SERIES_MAX = 1_000_000


def _log(call: Call) -> Value:
    """LOG(x) is natural, LOG(base, x) is not."""
    first = call.want(0, "number").cast(DOUBLE)
    if len(call.arguments) == 1:
        return call.result(logarithm(first), DOUBLE)
    return call.result(f"({logarithm(call.want(1, 'number').cast(DOUBLE))} / {logarithm(first)})", DOUBLE)


def _trunc(call: Call) -> Value:
    """Towards zero, to a number of places."""
    x = call.want(0, "number")
    places = 0
    if len(call.arguments) == 2:
        literal = call.want(1, "integer").literal
        if literal is None or abs(literal) > 30:
            raise Refusal(call.arguments[1].at, "TRUNC needs a literal from -30 to 30 as its number of places")
        places = literal
    towards = f"CASE WHEN {x.text} < 0 THEN ceil({x.text}, {places}) ELSE floor({x.text}, {places}) END"
    if x.type.is_integer:
        return call.result(f"CAST({towards} AS {x.type.ddl.upper()})", x.type)
    if x.type == DOUBLE:
        return call.result(f"CAST({towards} AS DOUBLE)", DOUBLE)
    type_ = decimal(x.type.precision, x.type.scale if len(call.arguments) == 2 else 0)
    return call.result(f"CAST({towards} AS {type_.ddl.upper()})", type_)


def _series(call: Call) -> Value:
    """GENERATE_SERIES: from one number to another, both included."""
    texts = [call.want(index, "integer") for index in range(len(call.arguments))]
    type_ = texts[0].type
    begin, end, *step = (value.cast(type_) for value in texts)
    items = f"abs(CAST({end} AS DOUBLE) - {begin})" + "".join(f" / abs({by})" for by in step)
    bound = at_most(end, SERIES_MAX, "GENERATE_SERIES", count=items)
    return call.result(f"sequence({', '.join((begin, bound, *step))})", array_of(type_))


def _radius(unit: Value) -> str:
    """The earth's radius in a unit; NULL is kilometres, and of what is no unit there is none."""
    word = f"lower(trim({unit.text}))"
    if unit.words is not None and unit.words.strip().lower() not in (*MILES, *KILOMETRES):
        raise Refusal(unit.at, "GEO_DISTANCE has no such unit", "'KM' or 'MI'")
    miles, kilometres = (", ".join(f"'{name}'" for name in names) for names in (MILES, KILOMETRES))
    in_kilometres = f"{unit.text} IS NULL OR {word} IN ({kilometres})"
    return f"CASE WHEN {in_kilometres} THEN {KILOMETRE_RADIUS} WHEN {word} IN ({miles}) THEN {MILE_RADIUS} END"


def _distance(call: Call) -> Value:
    """GEO_DISTANCE between two places in degrees, on a sphere, in kilometres or miles."""
    lat1, lon1, lat2, lon2 = (call.want(index, "number").cast(DOUBLE) for index in range(4))
    radius = _radius(call.want(4, "string")) if len(call.arguments) == 5 else KILOMETRE_RADIUS
    half = (
        f"(pow(sin(radians({lat2} - {lat1}) / 2), 2)"
        f" + cos(radians({lat1})) * cos(radians({lat2})) * pow(sin(radians({lon2} - {lon1}) / 2), 2))"
    )
    return call.result(f"(2 * {radius} * asin(sqrt({half})))", DOUBLE)


MATH: dict[str, Scalar] = {
    **{
        name: shaped(f"{name.lower()}({{0}})", DOUBLE, "double")
        for name in (
            "ACOS",
            "ASIN",
            "ATAN",
            "CBRT",
            "COS",
            "COSH",
            "COT",
            "DEGREES",
            "RADIANS",
            "SIN",
            "SINH",
            "TAN",
            "TANH",
        )
    },
    "ATAN2": shaped("atan2({0}, {1})", DOUBLE, "double", "double"),
    "GENERATE_SERIES": Scalar(2, 3, _series),
    "GEO_DISTANCE": Scalar(4, 5, _distance),
    "LOG": Scalar(1, 2, _log),
    "PI": Scalar(0, 0, lambda call: call.result("pi()", DOUBLE)),
    "POWER": shaped("power({0}, {1})", DOUBLE, "double", "double"),
    "TRUNC": Scalar(1, 2, _trunc),
}
