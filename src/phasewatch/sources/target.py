"""What a user writes for a server -> a Target, and a target's name <-> the folder a recording keeps it in."""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote

DEFAULT_PORTS = {"http": 80, "https": 443}
# vLLM's own default, for a bare host: `gpu-1` is not a URL, so the scheme's port is not what was meant.
VLLM_PORT = 8000
DEFAULT_PATH = "/metrics"
_LONGEST_FOLDER = 200  # bytes; file systems allow 255, and files beside it may want a suffix

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FORGOTTEN_SLASHES = re.compile(r"https?:(/(?!/)|[^/0-9])", re.IGNORECASE)
_HOST_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.?")
_ZONE = re.compile(r"[A-Za-z0-9._~-]+")
_BAD_CHARACTER = re.compile(r"[\s\x00-\x1f\x7f\\]")


class TargetError(ValueError):
    """What was written names no server. The message is one line: what, where, what to write instead."""


@dataclass(frozen=True, slots=True)
class Target:
    """One metrics page to read.

    name: how it is shown everywhere, `host:port` unless the user chose one. url: complete, with port and metrics path,
    without credentials, so it may be shown. labels: extra labels for exported series. role: prefill, decode or None.
    auth: (user, password) from the URL, kept out of repr.
    """

    name: str
    url: str
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    role: str | None = None
    auth: tuple[str, str] | None = field(default=None, repr=False)


def parse_target(
    text: str,
    name: str | None = None,
    *,
    port: int | None = None,
    labels: Mapping[str, str] | None = None,
    role: str | None = None,
) -> Target:
    """The target meant by `text`: a URL, `host`, `host:port`, `host:port/path`, an IPv6 address with or without [].

    Without a scheme it is http, and a missing port is vLLM's 8000; with one a missing port is the scheme's (80, 443).
    An empty path or "/" becomes /metrics, any other is kept, with its query. `port` is for sources that hold it apart
    from the address (then `2001:db8::10` needs no brackets). Credentials (`user:password@`) go to `auth`.
    Raises TargetError.
    """
    text = text.strip()
    try:
        scheme, auth, authority, path = _split(text)
        host, written_port = _host_and_port(authority, port_is_apart=port is not None)
        if port is not None and written_port is not None and port != written_port:
            raise TargetError(f"two ports, {written_port} and {port}; remove one")
        number = port if port is not None else written_port
        if number is None:
            number = DEFAULT_PORTS[scheme] if _SCHEME.match(text) else VLLM_PORT
        if not 0 < number < 65536:
            raise TargetError("invalid port; use a number from 1 to 65535")
        if name is not None:
            name = name.strip()
            if not name or not name.isprintable():
                raise TargetError("invalid name: empty, or with control characters; give it a readable one")
        shown = name or f"{host}:{number}"
        folder_name(shown)  # a name no recording could be kept under is refused here, not at the first write
    except TargetError as error:
        raise TargetError(f"target {shown_text(text)!r}: {error}") from None
    in_url = host.replace("%", "%25")
    return Target(shown, f"{scheme}://{in_url}:{number}{path}", dict(labels or {}), role, auth)


def told_apart(targets: Sequence[Target]) -> list[Target]:
    """The same, but those of several pages of one server are named by their path as well. Raises TargetError."""
    pages: dict[str, set[str]] = {}
    for target in targets:
        pages.setdefault(target.name, set()).add(target.url)
    return [_named_by_path(one) if len(pages[one.name]) > 1 else one for one in targets]


def _named_by_path(target: Target) -> Target:
    """As it is where the name is one that somebody chose."""
    server, _, path = target.url.partition("://")[2].partition("/")
    if target.name != server.replace("%25", "%"):
        return target
    address = f"{target.name}/{path}"
    try:
        folder_name(address)
    except TargetError as error:
        raise TargetError(f"target {address!r}: {error}") from None
    return replace(target, name=address)


def shown_text(text: str) -> str:
    """`text` as it may be shown: whatever may be credentials is starred out."""
    scheme = _SCHEME.match(text)
    start = scheme.end() if scheme else 0
    rest = text[start:]
    return text[:start] + ("***@" + rest.rpartition("@")[2] if "@" in rest else rest)


def folder_name(name: str) -> str:
    """The folder a recording keeps this target in: percent-encoded, never hidden, never `..`. Raises TargetError."""
    folder = quote(name, safe="")
    if folder.startswith("."):
        folder = "%2E" + folder[1:]
    if len(folder) > _LONGEST_FOLDER:
        raise TargetError(
            f"its name is too long for a folder ({len(folder)} of {_LONGEST_FOLDER} bytes); give it a shorter one"
        )
    return folder


def name_from_folder(folder: str) -> str:
    """The target a recording's folder belongs to; folders named by hand are taken as they are."""
    return unquote(folder)


def _split(text: str) -> tuple[str, tuple[str, str] | None, str, str]:
    """(scheme, credentials, authority, path with query)."""
    if not text:
        raise TargetError("empty; write a URL such as http://localhost:8000")
    if _BAD_CHARACTER.search(text):
        raise TargetError("a URL has no spaces, backslashes or control characters; write a space as %20")
    scheme_match = _SCHEME.match(text)
    if scheme_match is None and _FORGOTTEN_SLASHES.match(text):
        raise TargetError("missing // after the scheme; write http://localhost:8000")
    scheme = scheme_match[1].lower() if scheme_match else "http"
    if scheme not in DEFAULT_PORTS:
        raise TargetError(f"unsupported scheme {scheme}://; use http:// or https://")
    rest = text[scheme_match.end() :] if scheme_match else text
    rest, hash_sign, _ = rest.partition("#")
    if hash_sign:
        raise TargetError("unexpected '#'; remove it and what follows it (in a password write %23)")
    end = re.search(r"[/?]", rest)
    authority, path = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    userinfo, at_sign, authority = authority.rpartition("@")
    if "@" in path:
        # More likely a password with a slash in it than a path; showing or sending it as a path would give it away.
        raise TargetError(
            "unexpected '@' after the address; in a path write %40, in a password write / as %2F and ? as %3F"
        )
    auth = None
    if at_sign:
        user, _, password = userinfo.partition(":")
        auth = (unquote(user), unquote(password))
        if not user or any(not character.isprintable() for part in auth for character in part):
            raise TargetError("invalid credentials: no user name, or control characters; write user:password@host")
    before_query, question_mark, query = path.partition("?")
    if before_query in ("", "/"):
        before_query = DEFAULT_PATH
    return scheme, auth, authority, before_query + question_mark + query


def _host_and_port(authority: str, *, port_is_apart: bool) -> tuple[str, int | None]:
    """(host in lower case, IPv6 in brackets with its zone after a plain %; port or None)."""
    if not authority or (authority.startswith(":") and not authority.startswith("::")):
        raise TargetError(f"missing host; write localhost{authority or ':8000'}")
    if authority.startswith("["):
        inside, bracket, after = authority[1:].partition("]")
        if not bracket:
            raise TargetError("missing ']'; write an IPv6 address as [2001:db8::10]:8000")
        if after and not after.startswith(":"):
            raise TargetError("missing ':' after ']'; write [2001:db8::10]:8000")
        return _ipv6(inside, in_brackets=True), _port(after[1:]) if after else None
    if authority.count(":") > 1:
        return _bare_ipv6(authority, port_is_apart=port_is_apart), None
    host, colon, port = authority.partition(":")
    if host.isdigit():
        raise TargetError(f"invalid host '{host}'; for a port on this machine write localhost:{host}")
    if not _HOST_NAME.fullmatch(host):
        raise TargetError("invalid host; use letters, digits, '.', '-' and '_', or an IPv6 address in brackets")
    if host.replace(".", "").isdigit() and not _is_ipv4(host):
        raise TargetError("invalid IPv4 address; use four numbers from 0 to 255")
    return host.lower(), _port(port) if colon else None


def _bare_ipv6(literal: str, *, port_is_apart: bool) -> str:
    """An address without brackets, unless its last group could as well be a port."""
    head, _, last = literal.rpartition(":")
    may_be_port = last.isascii() and last.isdigit() and 0 < int(last) < 65536
    advice = f"; write [{head}]:{last} if {last} is the port"
    if not may_be_port or port_is_apart or not _is_ipv6(head):
        return _ipv6(literal, in_brackets=False)
    if _is_ipv6(literal):
        raise TargetError(f"ambiguous IPv6 address{advice}, or [{literal}]:{VLLM_PORT} if it is all address")
    raise TargetError(f"an IPv6 address with a port needs brackets{advice}")


def _is_ipv4(literal: str) -> bool:
    try:
        ipaddress.IPv4Address(literal)
    except ValueError:
        return False
    return True


def _is_ipv6(literal: str) -> bool:
    try:
        ipaddress.IPv6Address(literal)
    except ValueError:
        return False
    return ":" not in literal.partition("%")[2]


def _ipv6(literal: str, *, in_brackets: bool) -> str:
    address, percent, zone = literal.partition("%")
    # In a URL the zone's own % is written %25; people write both, so both are read.
    if percent and zone.startswith("25") and (in_brackets or len(zone) > 2):
        zone = zone[2:]
    if not _is_ipv6(address):
        raise TargetError("invalid IPv6 address; write [2001:db8::10]:8000, or host:port for a name or IPv4 address")
    if percent and not _ZONE.fullmatch(zone):
        raise TargetError("invalid interface after %; write it like [fe80::1%25eth0]:8000")
    parsed = ipaddress.IPv6Address(address)
    readable = f"::ffff:{parsed.ipv4_mapped}" if parsed.ipv4_mapped else parsed.compressed
    return f"[{readable}{percent}{zone}]"


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise TargetError("invalid port; use a number from 1 to 65535, such as host:8000")
    return int(text)
