"""Constraints beyond the schema: values of custom formats, and limits in bytes or across parameters."""

import json

import schemathesis
from hypothesis import strategies as st

schemathesis.openapi.format("cron", st.sampled_from(["0 3 * * *", "*/5 * * * *", "30 0 12 * * MON", "@daily"]))
schemathesis.openapi.format("time-zone", st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]))
schemathesis.openapi.format("duration-text", st.sampled_from(["90s", "2h", "1h30m", "1.5s", "500ms"]))
# A cursor is opaque: only an earlier response contains a valid one.
schemathesis.openapi.format("cursor", st.just(""))

NIL, MAX = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"


def too_long(value, limit=255):
    """Whether a text within the limit of characters exceeds it in bytes."""
    return isinstance(value, str) and len(value) <= limit and len(value.encode("utf-8", "surrogatepass")) > limit


def texts(value):
    """Yields every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


@schemathesis.hook
def filter_case(context, case):
    body = case.body if isinstance(case.body, (dict, list)) else {}
    places = [case.path_parameters or {}, dict(case.query or {}), body]
    if any(too_long(text, limit) for place in places for text in texts(place) for limit in (200, 246, 252, 255)):
        return False
    if not isinstance(body, dict):
        return not has_key(case)
    if body.get("leaseId") in (NIL, MAX):
        return False
    # A large number with a fraction may be parsed as an integer.
    if isinstance(body.get("token"), float) and not body["token"].is_integer():
        return False
    tasks = [task.get("id") for task in items(body, "tasks") if isinstance(task, dict)]
    if len(set(map(str, tasks))) < len(tasks):
        return False
    if has_key(case) and "key" in body:
        return False
    names = [name for name in items(body, "with") if isinstance(name, str)]
    name = (case.path_parameters or {}).get("name")
    if len(set(names + [name])) <= len(names):
        return False
    metadata = body.get("metadata")
    return not (isinstance(metadata, dict) and len(json.dumps(metadata)) > 3500)


def items(body, name):
    """Returns the items of a list in the body; none if an invalid body has another value in its place."""
    return body[name] if isinstance(body.get(name), list) else []


def has_key(case):
    return any(name.lower() == "idempotency-key" for name in (case.headers or {}))
