"""One metrics page over HTTP: patient with what is harmless, strict about what is not a whole page, quick to let go."""

import http.client
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

from phasewatch import __version__
from phasewatch.sources.connection import AbortableConnection
from phasewatch.sources.network_errors import explain, lower_first
from phasewatch.sources.pages import GZIP_MAGIC, MAX_PAGE_BYTES, OPENMETRICS, Gunzip, PageError, page_text, too_large
from phasewatch.sources.target import DEFAULT_PORTS, Target

REASONS = (
    "authentication",  # 401, 403, or a token file that cannot be used
    "busy",  # the previous scrape is still running
    "connect",  # no such host, refused, unreachable, reset
    "empty",  # 200 without a page
    "encoding",  # cannot be decompressed or is not UTF-8
    "internal",  # a mistake of phasewatch's own
    "not_metrics",  # HTML, JSON or other text
    "protocol",  # what answers is not HTTP, or breaks its rules
    "redirect",  # to another server, in a circle, or too often
    "status",  # any other answer than 200
    "timeout",
    "tls",
    "too_large",
    "truncated",
)
ACCEPT = f"{OPENMETRICS};version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
MAX_REDIRECTS = 5
_CHUNK = 64 * 1024
_STATUS_ADVICE = {
    404: "no metrics at this path; check it",
    405: "no metrics at this path; check it",
    429: "too many requests; use a longer interval",
    500: "its metrics path fails while the engine may be fine; see the server's log",
    502: "the proxy cannot reach its upstream",
    503: "the server is not ready or overloaded",
    504: "the proxy timed out waiting for its upstream",
}


class ScrapeError(Exception):
    """A scrape that brought no whole page. reason: one of REASONS. message: one line, without secrets."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def our_fault(target: Target, error: Exception) -> ScrapeError:
    """What is said of a scrape that a mistake of ours ended: it costs that scrape only."""
    return ScrapeError("internal", f"{target.url}: {error!r}, a fault of phasewatch; please report this")


class _Request(NamedTuple):
    """A GET as requests prepared it. server: scheme, host without brackets, port. path: with its query."""

    url: str
    server: tuple[str, str, int]
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Scrape:
    """A page. content_type: as the server sent it, "" if it sent none. seconds: from the request to the last byte.
    size: bytes once unpacked."""

    text: str
    content_type: str
    status: int
    seconds: float
    size: int = 0


class Scraper:
    """Reads one target's page, again and again over one kept connection; never two requests at once.

    Times in seconds: connect_timeout bounds each connection attempt, read_timeout each wait for more bytes,
    total_timeout the whole scrape, redirects and slow senders included (only a name look-up cannot be cut short).
    max_bytes bounds the page before and after decompression. bearer_token_file is read anew for every scrape, so a
    token may be rotated; it wins over a password in the URL. ca_file: certificates to trust instead of the usual ones.
    Proxy settings of the environment are ignored.
    """

    def __init__(
        self,
        target: Target,
        *,
        connect_timeout: float = 2.0,
        read_timeout: float = 5.0,
        total_timeout: float = 9.0,
        max_bytes: int = MAX_PAGE_BYTES,
        bearer_token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
    ) -> None:
        self.target = target
        self._timeouts = (min(connect_timeout, total_timeout), min(read_timeout, total_timeout))
        self.total_timeout = total_timeout
        self.max_bytes = max_bytes
        self._token_file = bearer_token_file
        self._url = target.url  # where the page was found last
        self._busy = threading.Lock()
        self._ca_file = str(ca_file) if ca_file else None
        self._connection = AbortableConnection(*self._timeouts, self._ca_file)
        self._prepared: _Request | None = None
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.auth = target.auth if bearer_token_file is None else None
        self._session.headers.update(
            {"Accept": ACCEPT, "Accept-Encoding": "gzip", "User-Agent": f"phasewatch/{__version__}"}
        )
        server = urlsplit(target.url).netloc
        if "%" in server:
            # A zone is this machine's own business; older Pythons (3.11.2) would send it to the server.
            self._session.headers["Host"] = f"{server.partition('%')[0]}]{server.rpartition(']')[2]}"

    def fetch(self) -> Scrape:
        """The page as it is now. Raises ScrapeError, and nothing else, for whatever the server or network may do."""
        if not self._busy.acquire(blocking=False):
            raise self._error("busy", "the previous scrape is still running; use a longer interval")
        try:
            return self._fetch()
        except PageError as error:
            raise self._error(error.reason, error.message) from None
        finally:
            self._busy.release()

    def close(self) -> None:
        """Ends a scrape that is running (it fails) and the kept connection."""
        self._connection.abort()
        if self._busy.acquire(blocking=False):
            self._connection.close()
            self._busy.release()

    def _fetch(self) -> Scrape:
        started = time.monotonic()
        if self._ca_file is not None and not os.path.exists(self._ca_file):
            raise self._error("tls", f"certificate file {self._ca_file}: no such file")
        authorization = self._authorization()
        with self._connection.limited_to(self.total_timeout) as limit:
            try:
                response, body = self._follow(authorization)
            except (
                requests.RequestException,
                urllib3.exceptions.HTTPError,
                http.client.HTTPException,
                OSError,
                UnicodeError,
            ) as error:
                if limit.is_over:
                    raise self._error("timeout", self._too_slow()) from None
                raise self._error(*explain(error, *self._timeouts)) from None
            except PageError:
                if not limit.is_over:
                    raise
            # A connection cut by the watch can look like the regular end of a page.
            if limit.is_over:
                raise self._error("timeout", self._too_slow())
        content_type = response.headers.get("Content-Type", "").strip()
        text = page_text(body, content_type)
        has_end = (
            "Content-Length" in response.headers or "chunked" in response.headers.get("Transfer-Encoding", "").lower()
        )
        if not has_end and not text.endswith("\n"):
            raise PageError("truncated", "the connection ended in the middle of a line; the whole scrape is discarded")
        return Scrape(text, content_type, response.status, time.monotonic() - started, len(body))

    def _follow(self, authorization: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        """The answer that is a page, redirects on the same server followed, and its bytes."""
        url, seen = self._url, []
        while True:
            seen.append(url)
            request = self._request(url)
            response = self._connection.get(request.server, request.path, {**request.headers, **authorization})
            try:
                if "Set-Cookie" in response.headers:
                    self._keep_cookies(url, response)
                location = response.headers.get("Location")
                if 300 <= response.status < 400 and location:
                    url = self._redirected(url, location, seen)
                    continue
                if response.status != 200:
                    self._url = self.target.url
                    raise self._error(*self._refused(response.status))
                body = self._body(response)
                self._url = url
                return response, body
            finally:
                self._connection.release(response)

    def _request(self, url: str) -> _Request:
        if self._prepared is None or self._prepared.url != url:
            prepared = self._session.prepare_request(requests.Request("GET", url))
            parts = urlsplit(prepared.url or url)
            scheme, host, port = _server(url)
            # Only here a zone is the system's; in a URL it is written with %25.
            server = (scheme, (parts.hostname or host).replace("%25", "%"), port)
            self._prepared = _Request(url, server, prepared.path_url, dict(prepared.headers))
        return self._prepared

    def _keep_cookies(self, url: str, response: http.client.HTTPResponse) -> None:
        """Sent again with the next request, so that a load balancer goes on to the same server behind it."""
        asked = self._session.prepare_request(requests.Request("GET", url))
        answer: Any = SimpleNamespace(_original_response=response)
        requests.cookies.extract_cookies_to_jar(self._session.cookies, asked, answer)  # type: ignore[no-untyped-call]
        self._prepared = None

    def _redirected(self, url: str, location: str, seen: list[str]) -> str:
        """Where to go on. Only the same server gets our request (and token): same host and port, or its https."""
        try:
            new = urljoin(url, location).partition("#")[0]
            shown = "".join(c for c in _without_secrets(new) if c.isprintable())[:200]
            here, there = _server(url), _server(new)
        except ValueError:
            raise self._error("redirect", "redirected to an invalid URL; check the address") from None
        upgrade = (
            here[0] == "http"
            and there == ("https", here[1], DEFAULT_PORTS["https"])
            and here[2] == DEFAULT_PORTS["http"]
        )
        if here != there and not upgrade:
            raise self._error(
                "redirect", f"redirected to another server, {shown}: not followed; if it is right, use that address"
            )
        if new in seen:
            raise self._error("redirect", f"redirect loop, back to {shown}; check the path and the proxy")
        if len(seen) > MAX_REDIRECTS:
            raise self._error(
                "redirect", f"redirected more than {MAX_REDIRECTS} times, last to {shown}; check the path and the proxy"
            )
        return new

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        """The page's bytes, decompressed. Raises PageError."""
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            raise PageError("encoding", f"unsupported Content-Encoding {encoding[:40]!r}; check the proxy")
        announced = response.headers.get("Content-Length", "")
        if announced.isdigit() and int(announced) > self.max_bytes:
            raise too_large(self.max_bytes)
        decoder: Gunzip | None = Gunzip(self.max_bytes) if encoding in ("gzip", "x-gzip") else None
        body, received = bytearray(), 0
        while data := response.read1(_CHUNK):
            # gzip without a header that says so (a badly set up proxy) is still readable.
            if not received and decoder is None and data.startswith(GZIP_MAGIC):
                decoder = Gunzip(self.max_bytes)
            received += len(data)
            if received > self.max_bytes:
                raise too_large(self.max_bytes)
            body += decoder.feed(data) if decoder else data
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        if decoder and received:
            decoder.finish()
        return bytes(body)

    def _authorization(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            token = Path(self._token_file).read_text(encoding="ascii").strip()
        except OSError as error:
            raise self._error(
                "authentication", f"token file {self._token_file}: {lower_first(error.strerror)}"
            ) from None
        except UnicodeDecodeError:
            token = ""
        if not token or any(not c.isprintable() or c == " " for c in token):
            raise self._error("authentication", f"token file {self._token_file} has no token; write one word into it")
        return {"Authorization": f"Bearer {token}"}

    def _refused(self, status: int) -> tuple[str, str]:
        if status in (401, 403):
            sent = (
                "does not accept our token or password"
                if self._token_file or self.target.auth
                else "asks for a token or password"
            )
            return "authentication", f"answered {status}: the server {sent}; check the credentials for its metrics"
        return (
            "status",
            f"answered {status}: {_STATUS_ADVICE.get(status, 'see the log of the server or proxy')}",
        )

    def _too_slow(self) -> str:
        return f"not complete after {self.total_timeout:g} s; the server is overloaded, or sends without end"

    def _error(self, reason: str, message: str) -> ScrapeError:
        return ScrapeError(reason, f"{_without_secrets(self.target.url)}: {message}")


def _server(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise ValueError(url)
    return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme]


def _without_secrets(url: str) -> str:
    """A URL as it may be shown: without user, password and query."""
    bare = url.partition("?")[0]
    scheme, separator, rest = bare.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
