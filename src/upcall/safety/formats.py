"""Check the formats of JSON Schema. Each check takes linear time."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import date, time

_TIME = re.compile(r"\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:?\d\d)\Z", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d\Z", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z")
_SCHEME = re.compile(r"\w+:\S+\Z")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\Z")


def _is_date(text: str) -> bool:
    return bool(_DATE.match(text)) and _is_parsed(date.fromisoformat, text)


def _is_time(text: str) -> bool:
    return bool(_TIME.match(text)) and _is_parsed(time.fromisoformat, _leap(text))


def _is_date_time(text: str) -> bool:
    day, mark, clock = text[:10], text[10:11], text[11:]
    return mark in ("T", "t") and _is_date(day) and _is_time(clock)


def _leap(text: str) -> str:
    """Treat a leap second like any other second."""
    return f"{text[:6]}59{text[8:]}" if text[6:8] == "60" else text


def _is_email(text: str) -> bool:
    name, at, host = text.partition("@")
    named = bool(name) and name[0] != "." and name[-1] != "." and ".." not in name
    return named and bool(at) and "@" not in host and "." in host[1:-1]


def _is_hostname(text: str) -> bool:
    return len(text) <= 253 and all(_LABEL.match(label) for label in text.split("."))


def _is_ipv4(text: str) -> bool:
    return _is_parsed(ipaddress.IPv4Address, text)


def _is_ipv6(text: str) -> bool:
    return "%" not in text and _is_parsed(ipaddress.IPv6Address, text)


def _is_uri(text: str) -> bool:
    return bool(_SCHEME.match(text))


def _is_uuid(text: str) -> bool:
    return bool(_UUID.match(text))


def _is_parsed(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


FORMATS: dict[str, Callable[[str], bool]] = {
    "date": _is_date, "time": _is_time, "date-time": _is_date_time, "email": _is_email, "hostname": _is_hostname,
    "ipv4": _is_ipv4, "ipv6": _is_ipv6, "uri": _is_uri, "uuid": _is_uuid,
}  # fmt: skip
"""By name. Other formats are not checked."""
