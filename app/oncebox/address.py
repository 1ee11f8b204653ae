"""Address: hosts, URLs and files as they are written, and what is no such thing. Pure."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

_URL = re.compile(r"https?://[^\s\x00-\x1f\x7f/?#]+(?:[/?#][^\s\x00-\x1f\x7f]*)?")


def is_url(text: str) -> bool:
    """Whether a text is an http or https URL with a host, and has nothing in it that would end a line of a request."""
    try:
        parts = urlsplit(text)
        return _URL.fullmatch(text) is not None and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reachable from this machine only."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_name(host: str) -> str:
    """A Host header without its port, brackets and last dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def host_of(url: str) -> str:
    """The host in a URL; "" where there is none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def no_database(text: str) -> str:
    """Why a text is not the path of a file that keeps what is written to it; "" where it may be one."""
    if text == ":memory:":
        return '":memory:" would keep nothing; name a file, such as "oncebox.db"'
    if text[:5].lower() == "file:":
        return 'a "file:" URI is not understood here; write the plain path, such as "oncebox.db"'
    if text.endswith("/") or text in (".", ".."):
        return f'"{text}" is a folder; name the file in it, such as "{text.rstrip("/")}/oncebox.db"'
    return ""
