"""Bytes -> the text of a metrics page, the same way for a live scrape and for a recorded file."""

import codecs
import json
import re
import zlib

MAX_PAGE_BYTES = 64 * 1024 * 1024  # a vLLM page is 50 to 400 kB
GZIP_MAGIC = b"\x1f\x8b"
OPENMETRICS = "application/openmetrics-text"
# A line only a metrics page has: a comment of the format, or a name with an optional label set and a number.
_METRICS_LINE = re.compile(
    r"^[ \t]*(?:#[ \t]*(?:HELP|TYPE|UNIT|EOF)\b"
    r"|(?:[A-Za-z_:][\w:]*(?<!:)(?:\{.*\})?|\{.*\})[ \t]+[-+]?(?:\d|\.\d|Inf|NaN))",
    re.MULTILINE | re.IGNORECASE,
)

# No sample and no comment begins with it, so a line that does is counted as one that cannot be read.
_UNREADABLE = "\N{REPLACEMENT CHARACTER}"


class PageError(ValueError):
    """This is no whole metrics page. reason: one of scrape.REASONS; the message is one line that can follow a place."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Gunzip:
    """Decompresses piece by piece, strictly, and never to more than `limit` bytes. Every method raises PageError.

    The decoders of HTTP libraries take a stream that is cut short or followed by junk as complete.
    """

    def __init__(self, limit: int = MAX_PAGE_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._decoder = zlib.decompressobj(wbits=31)

    def feed(self, data: bytes) -> bytes:
        out = bytearray()
        while data:
            if self._decoder.eof:  # gzip allows several members one after the other
                if not data.startswith(GZIP_MAGIC[: len(data)]):
                    raise PageError(
                        "encoding", "unexpected data after the end of the gzip stream; a proxy may rewrite responses"
                    )
                self._decoder = zlib.decompressobj(wbits=31)
            try:
                piece = self._decoder.decompress(data, self._limit - self._size + 1)
            except zlib.error:
                raise PageError("encoding", "invalid gzip data; a proxy may rewrite responses") from None
            self._size += len(piece)
            if self._size > self._limit:
                raise too_large(self._limit)
            out += piece
            data = self._decoder.unconsumed_tail or self._decoder.unused_data
        return bytes(out)

    def finish(self) -> None:
        if not self._decoder.eof:
            raise PageError("truncated", "the gzip data is cut off; the whole scrape is discarded")


def too_large(limit: int) -> PageError:
    size = f"{limit // (1024 * 1024)} MiB" if limit >= 1024 * 1024 else f"{limit} bytes"
    return PageError("too_large", f"the response is larger than {size}; check the address, or raise the limit")


def gunzip(data: bytes, limit: int = MAX_PAGE_BYTES) -> bytes:
    """All of `data` decompressed. Raises PageError."""
    decoder = Gunzip(limit)
    out = decoder.feed(data)
    decoder.finish()
    return out


def page_text(body: bytes, content_type: str = "") -> str:
    """The page's text. An invalid byte costs its line: it stays, but as one that nobody can take for a sample.

    Raises PageError: empty, still compressed, no text, cut short, or no metrics page.
    """
    if body.startswith(GZIP_MAGIC):
        raise PageError("encoding", "compressed twice; a proxy may compress what is compressed already")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = _mended(body)
        if not text:
            raise PageError("encoding", f"invalid UTF-8 at byte {error.start}; check the address and path") from None
    if not text.strip():
        raise PageError("empty", "the response is empty; the server is up: check its metrics settings")
    # HTML first: its style sheets may hold lines that look like samples.
    if text.lstrip().startswith("<") or not _METRICS_LINE.search(text):
        raise PageError("not_metrics", f"expected metrics, got {_kind(text, content_type)}; check the address and path")
    if content_type.lower().startswith(OPENMETRICS) and not text.rstrip().endswith("# EOF"):
        raise PageError("truncated", "the response ends before its '# EOF' line; the whole scrape is discarded")
    return text


def _mended(body: bytes) -> str:
    """Valid text of a page with invalid bytes; "" where it is none: no metrics in it, or no line in two is text."""
    lines, bad = body.removeprefix(codecs.BOM_UTF8).split(b"\n"), 0
    texts = []
    for line in lines:
        try:
            texts.append(line.decode())
        except UnicodeDecodeError:
            bad += 1
            texts.append(_UNREADABLE + line.decode(errors="replace"))
    text = "\n".join(texts)
    return text if 2 * bad < len(lines) and _METRICS_LINE.search(text) else ""


def _kind(text: str, content_type: str) -> str:
    start = text.lstrip()[:200].lower()
    if start.startswith(("<!doctype html", "<html")) or "text/html" in content_type.lower():
        return "HTML"
    if start.startswith("<"):
        return "XML"
    if start.startswith(("{", "[")):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            return "JSON"
    return "other text"
