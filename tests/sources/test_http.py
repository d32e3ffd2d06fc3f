import gzip
import os
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from phasewatch.sources.http import REASONS, ScrapeError, Scraper
from phasewatch.sources.target import parse_target
from support import HttpServer, Reply, Route

PAGE = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n"
ZIPPED = gzip.compress(PAGE, mtime=0)  # the same bytes in every process that collects these tests
TWICE = gzip.compress(ZIPPED, mtime=0)
Serve = Callable[..., HttpServer]
Scrape = Callable[..., Scraper]


@pytest.fixture
def scraper() -> Iterator[Scrape]:
    """A Scraper of a URL, with short limits; closed after the test."""
    made: list[Scraper] = []

    def make(url: str, **options: Any) -> Scraper:
        short = {"connect_timeout": 1.0, "read_timeout": 0.3, "total_timeout": 0.6}
        made.append(Scraper(parse_target(url), **{**short, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def raw(data: bytes, *, close: bool = True) -> Route:
    """A route that sends these bytes and nothing else."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(data)
        request.close_connection = close

    return answer


def gzipped(body: bytes) -> Reply:
    return Reply(body, headers={"Content-Encoding": "gzip"})


def failure(scraper: Scraper) -> ScrapeError:
    with pytest.raises(ScrapeError) as caught:
        scraper.fetch()
    error = caught.value
    assert error.reason in REASONS
    assert str(error) == error.message
    assert error.message.isprintable()
    assert error.message.startswith("http")
    assert "Error" not in error.message
    assert "object at" not in error.message
    return error


def test_a_page_comes_whole_with_its_type_over_one_kept_connection(http_server: Serve, scraper: Scrape) -> None:
    server = http_server({"/metrics": PAGE})
    one = scraper(server.url)
    for _ in range(3):
        scrape = one.fetch()
        assert (scrape.text, scrape.status) == (PAGE.decode(), 200)
        assert scrape.content_type == "text/plain; version=0.0.4"
        assert 0 < scrape.seconds < 60
    assert (len(server.requests), server.connections) == (3, 1)
    assert "application/openmetrics-text" in server.requests[0].headers["Accept"]
    assert "text/plain" in server.requests[0].headers["Accept"]
    assert server.requests[0].headers["Accept-Encoding"] == "gzip"


def test_a_chunked_page_is_read_over_one_kept_connection(http_server: Serve, scraper: Scrape) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server = http_server({"/metrics": raw(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(PAGE), PAGE), close=False)})
    one = scraper(server.url)
    assert [one.fetch().text for _ in range(2)] == [PAGE.decode()] * 2
    assert server.connections == 1


def test_a_kept_connection_that_the_server_closed_is_no_failure(http_server: Serve, scraper: Scrape) -> None:
    asked = []

    def close_the_second_time(request: BaseHTTPRequestHandler) -> None:
        asked.append(1)
        if len(asked) == 2:
            request.close_connection = True
        else:
            request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PAGE) + PAGE)

    server = http_server({"/metrics": close_the_second_time})
    one = scraper(server.url)
    assert [one.fetch().text for _ in range(3)] == [PAGE.decode()] * 3
    assert server.connections == 2


def test_a_cookie_of_a_load_balancer_is_sent_again(http_server: Serve, scraper: Scrape) -> None:
    cookies = {"Set-Cookie": "backend=b1; Path=/", "Content-Type": "text/plain"}
    server = http_server({"/metrics": Reply(PAGE, headers=cookies)})
    one = scraper(server.url)
    for _ in range(2):
        one.fetch()
    assert [request.headers.get("Cookie") for request in server.requests] == [None, "backend=b1"]
    assert server.connections == 1


def test_a_reset_in_the_middle_of_a_page_is_not_asked_again(http_server: Serve, scraper: Scrape) -> None:
    def reset(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n" + PAGE)
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.close_connection = True

    server = http_server({"/metrics": PAGE})
    one = scraper(server.url)
    one.fetch()
    server.routes["/metrics"] = reset
    assert failure(one).reason in ("connect", "truncated")
    assert len(server.requests) == 2


def test_an_answer_left_half_read_does_not_leak_into_the_next(http_server: Serve, scraper: Scrape) -> None:
    server = http_server({"/metrics": Reply(PAGE, 500)})
    one = scraper(server.url)
    assert failure(one).reason == "status"
    server.routes["/metrics"] = PAGE
    assert one.fetch().text == PAGE.decode()
    assert server.connections == 2


def test_an_answer_that_nobody_asked_for_is_not_read_as_the_next(http_server: Serve, scraper: Scrape) -> None:
    page, other = (PAGE.replace(b"3", number) * 4000 for number in (b"3", b"4"))
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page) + one for one in (page, other)]
    server = http_server({"/metrics": raw(b"".join(answers), close=False)})
    one = scraper(server.url)
    assert [one.fetch().text for _ in range(4)] == [page.decode()] * 4


def test_one_thread_watches_over_the_times_of_all_scrapes(http_server: Serve, scraper: Scrape) -> None:
    server = http_server({"/metrics": PAGE})
    scrapers = [scraper(server.url, total_timeout=30, read_timeout=30) for _ in range(5)]
    for one in scrapers * 3:
        one.fetch()
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("watchdog") == 1
    assert not [name for name in names if name.startswith("Timer")]


def test_a_proxy_in_the_environment_is_ignored(
    http_server: Serve, scraper: Scrape, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert scraper(http_server({"/metrics": PAGE}).url).fetch().text == PAGE.decode()


def test_d17_an_ipv6_server_is_scraped(scraper: Scrape) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("NOT TESTED: this machine has no IPv6 loopback")
    heard = []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(65536))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PAGE) + PAGE)

    thread = threading.Thread(target=answer, daemon=True)
    with listener:
        thread.start()
        port = listener.getsockname()[1]
        assert scraper(f"[::1]:{port}").fetch().text == PAGE.decode()
        thread.join(5)
    assert b"Host: [::1]:%d\r\n" % port in heard[0]


def test_d17_a_zone_goes_to_the_system_and_not_to_the_server(
    http_server: Serve, scraper: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, real, asked = http_server({"/metrics": PAGE}), socket.getaddrinfo, []

    def look_up(host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        return real("127.0.0.1", port, type=socket.SOCK_STREAM)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    port = server.server_port
    assert scraper(f"http://[fe80::1%25eth0]:{port}/metrics").fetch().text == PAGE.decode()
    assert asked == ["fe80::1%eth0"]
    assert server.requests[0].headers["Host"] == f"[fe80::1]:{port}"


def test_d01_a_redirect_on_the_same_server_is_followed_once_and_remembered(http_server: Serve, scraper: Scrape) -> None:
    server = http_server({"/metrics": Reply(status=307, headers={"Location": "/metrics/"}), "/metrics/": PAGE})
    one = scraper(server.url)
    assert [one.fetch().text for _ in range(2)] == [PAGE.decode()] * 2
    assert [request.path for request in server.requests] == ["/metrics", "/metrics/", "/metrics/"]
    server.routes["/metrics"] = PAGE
    del server.routes["/metrics/"]
    assert failure(one).reason == "status"
    assert one.fetch().text == PAGE.decode()


@pytest.mark.parametrize("hops", [1, 2])
def test_a_redirect_in_a_circle_is_cut(http_server: Serve, scraper: Scrape, hops: int) -> None:
    paths = ["/metrics", "/a"][:hops]
    after = [*paths[1:], paths[0]]
    server = http_server(
        {path: Reply(status=302, headers={"Location": to}) for path, to in zip(paths, after, strict=True)}
    )
    error = failure(scraper(server.url))
    assert (error.reason, len(server.requests)) == ("redirect", hops)
    assert "redirect loop" in error.message


def test_redirects_without_end_are_cut(http_server: Serve, scraper: Scrape) -> None:
    server = http_server({f"/{n}": Reply(status=302, headers={"Location": f"/{n + 1}"}) for n in range(50)})
    error = failure(scraper(server.url + "/0"))
    assert (error.reason, len(server.requests)) == ("redirect", 6)


@pytest.mark.parametrize(
    "location",
    ["http://127.0.0.2:1/metrics", "//127.0.0.1:1/metrics", "https://127.0.0.1:1/metrics", "file:///etc/passwd"],
)
def test_a_redirect_to_another_server_is_named_not_followed(http_server: Serve, scraper: Scrape, location: str) -> None:
    server = http_server({"/metrics": Reply(status=302, headers={"Location": location + "?token=secret"})})
    error = failure(scraper(server.url))
    assert error.reason == "redirect"
    assert location.startswith("file:") or location.rpartition("//")[2] in error.message
    assert "secret" not in error.message


@pytest.mark.parametrize(
    "location", ["http://[x", "//[", "http://127.0.0.1:99999/", "http://127.0.0.1:x/", "http://[::1"]
)
def test_t9_a_redirect_to_an_invalid_url_is_a_failed_scrape(http_server: Serve, scraper: Scrape, location: str) -> None:
    server = http_server({"/metrics": Reply(status=302, headers={"Location": location})})
    error = failure(scraper(server.url))
    assert error.reason == "redirect"
    assert error.message.endswith("redirected to an invalid URL; check the address")


@pytest.mark.parametrize("status", [401, 403])
def test_d03_a_server_that_wants_credentials_is_no_dead_server(
    http_server: Serve, scraper: Scrape, status: int
) -> None:
    server = http_server({"/metrics": Reply(b'{"error":"Invalid API Key"}', status)})
    error = failure(scraper(server.url))
    assert error.reason == "authentication"
    assert str(status) in error.message


def test_d03_a_token_is_read_anew_for_every_scrape(http_server: Serve, scraper: Scrape, tmp_path: Path) -> None:
    server, file = http_server({"/metrics": PAGE}), tmp_path / "token"
    one = scraper(server.url.replace("//", "//me:password@"), bearer_token_file=file)
    assert failure(one).reason == "authentication"
    for token in ("first", "second"):
        file.write_text(token + "\n")
        one.fetch()
        assert server.requests[-1].headers["Authorization"] == f"Bearer {token}"
    for bad in ("", "two words", "line\nbreak", "é"):
        file.write_text(bad, encoding="utf-8")
        assert str(file) in failure(one).message
    assert len(server.requests) == 2
    file.write_text("secret-token")
    server.routes["/metrics"] = Reply(status=401)
    assert "secret-token" not in failure(one).message


def test_a_password_in_the_url_is_sent_and_never_shown(http_server: Serve, scraper: Scrape) -> None:
    server = http_server({"/metrics": PAGE})
    one = scraper(server.url.replace("//", "//me:s%40cret@"))
    one.fetch()
    assert server.requests[0].headers["Authorization"] == "Basic bWU6c0BjcmV0"
    server.routes["/metrics"] = Reply(status=403)
    assert "cret" not in failure(one).message


@pytest.mark.parametrize("status", [204, 400, 404, 500, 502, 503])
def test_d05_another_status_is_named_and_500_does_not_condemn_the_engine(
    http_server: Serve, scraper: Scrape, status: int
) -> None:
    server = http_server({"/metrics": Reply(PAGE if status != 204 else b"", status)})
    error = failure(scraper(server.url))
    assert error.reason == "status"
    assert f"answered {status}" in error.message
    assert ("the engine may be fine" in error.message) == (status == 500)


def test_a09_an_empty_page_is_a_failure_not_zero_load(http_server: Serve, scraper: Scrape) -> None:
    server = http_server({"/metrics": PAGE})
    one = scraper(server.url)
    one.fetch()
    for body in (b"", b"\n", b"  \r\n"):
        server.routes["/metrics"] = Reply(body)
        assert failure(one).reason == "empty"


@pytest.mark.parametrize(
    ("body", "what"), [(b"<!doctype html><html>login</html>", "HTML"), (b'{"status": "ok"}', "JSON"), (b"ok\n", "text")]
)
def test_a_page_of_something_else_is_named(http_server: Serve, scraper: Scrape, body: bytes, what: str) -> None:
    error = failure(scraper(http_server({"/metrics": Reply(body)}).url))
    assert error.reason == "not_metrics"
    assert what in error.message


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n" + PAGE,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(PAGE), PAGE),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40000\r\n" + PAGE,
        b"HTTP/1.1 200 OK\r\n\r\n" + PAGE[:-3],
        b"HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text\r\n\r\n" + PAGE,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(ZIPPED[:-4]) + ZIPPED[:-4],
    ],
    ids=["content-length", "no last chunk", "inside a chunk", "inside a line", "no EOF line", "inside gzip"],
)
def test_d19_a_page_cut_short_is_discarded_as_a_whole(http_server: Serve, scraper: Scrape, answer: bytes) -> None:
    server = http_server({"/metrics": raw(answer)})
    one = scraper(server.url)
    assert failure(one).reason == "truncated"
    server.routes["/metrics"] = PAGE
    assert one.fetch().text == PAGE.decode()


@pytest.mark.parametrize(
    "reply",
    [
        gzipped(TWICE),
        gzipped(b"\x1f\xef\xbf\xbd\x08" + ZIPPED[2:]),
        gzipped(ZIPPED + PAGE),
        gzipped(PAGE),
        Reply(PAGE, headers={"Content-Encoding": "br"}),
        Reply(TWICE),
        Reply(b"\xff\xfe" + PAGE.decode().encode("utf-16-le")),
    ],
    ids=["twice", "broken", "junk after", "not compressed", "not asked for", "twice without header", "UTF-16"],
)
def test_d15_compression_mix_ups_are_bad_encoding(http_server: Serve, scraper: Scrape, reply: Reply) -> None:
    assert failure(scraper(http_server({"/metrics": reply}).url)).reason == "encoding"


@pytest.mark.parametrize("reply", [gzipped(ZIPPED), Reply(ZIPPED)], ids=["header", "sniffed"])
def test_d15_gzip_is_read_with_and_without_its_header(http_server: Serve, scraper: Scrape, reply: Reply) -> None:
    assert scraper(http_server({"/metrics": reply}).url).fetch().text == PAGE.decode()


def endless(start: bytes, piece: bytes, sent: list[int]) -> Route:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n" + start + b"\r\n")
        for _ in range(200 * 1024 * 1024 // len(piece)):
            request.wfile.write(piece)
            sent.append(len(piece))
        request.close_connection = True

    return answer


@pytest.mark.parametrize("start", [b"", b"Content-Length: 209715200\r\n"], ids=["unannounced", "announced"])
def test_a_200_mb_page_is_cut_early(http_server: Serve, scraper: Scrape, start: bytes) -> None:
    sent: list[int] = []
    server = http_server({"/metrics": endless(start, PAGE * 4096, sent)})
    error = failure(scraper(server.url, max_bytes=1_000_000, total_timeout=30, read_timeout=5))
    assert error.reason == "too_large"
    assert sum(sent) < 20_000_000  # what fits into the system's buffers comes on top of the limit


def test_a_gzip_bomb_is_cut_early(http_server: Serve, scraper: Scrape) -> None:
    server = http_server({"/metrics": gzipped(gzip.compress(b"\n" * 20_000_000))})
    error = failure(scraper(server.url, max_bytes=1_000_000, total_timeout=30, read_timeout=5))
    assert error.reason == "too_large"


def dripping(start: bytes, piece: bytes) -> Route:
    """Never silent for as long as the read timeout, and never done."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        server = request.server
        assert isinstance(server, HttpServer)
        request.wfile.write(start)
        while not server.stopping.wait(0.02):
            request.wfile.write(piece)

    return answer


@pytest.mark.parametrize(
    "route",
    [
        dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n", b"x"),
        dripping(b"HTTP/1.1 200 OK\r\n\r\n" + PAGE, b"x 1\n"),
        dripping(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"4\r\nx 1\n\r\n"),
        dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        dripping(b"", b"H"),
    ],
    ids=["body", "body without end", "chunks", "header", "status line"],
)
def test_a_server_that_drips_is_cut_at_the_total_time(http_server: Serve, scraper: Scrape, route: Route) -> None:
    server = http_server({"/metrics": route})
    one = scraper(server.url)
    error = failure(one)
    assert error.reason == "timeout"
    assert "0.6 s" in error.message
    server.routes["/metrics"] = PAGE
    assert one.fetch().text == PAGE.decode()


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n" + PAGE])
def test_a_server_that_falls_silent_is_cut_at_the_read_timeout(
    http_server: Serve, scraper: Scrape, start: bytes
) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        assert isinstance(request.server, HttpServer)
        request.wfile.write(start)
        request.server.stopping.wait(30)

    error = failure(scraper(http_server({"/metrics": answer}).url, total_timeout=30))
    assert error.reason == "timeout"
    assert "0.3 s" in error.message


def test_a_port_where_nothing_listens_says_so(scraper: Scrape, free_port: int) -> None:
    error = failure(scraper(f"127.0.0.1:{free_port}"))
    assert error.reason == "connect"
    assert f"127.0.0.1:{free_port}" in error.message
    assert "refused" in error.message


def test_a_server_that_never_accepts_is_a_connect_timeout(scraper: Scrape) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, socket.socket() as fills_the_queue:
        fills_the_queue.connect(listener.getsockname())
        error = failure(scraper(f"127.0.0.1:{listener.getsockname()[1]}", connect_timeout=0.2, total_timeout=30))
    assert error.reason == "timeout"
    assert "no connection within 0.2 s" in error.message


def test_a_name_that_does_not_resolve_says_so(scraper: Scrape, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def look_up(*args: object, **kwargs: object) -> None:
        asked.append(args[0])
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    error = failure(scraper("gpu-1.invalid"))
    assert asked == ["gpu-1.invalid"]
    assert error.reason == "connect"
    assert "does not resolve" in error.message


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "connect"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "protocol"),
    ],
    ids=["nothing", "ssh", "many headers", "long header"],
)
def test_what_does_not_speak_http_is_told_from_a_dead_server(
    http_server: Serve, scraper: Scrape, answer: bytes, reason: str
) -> None:
    assert failure(scraper(http_server({"/metrics": raw(answer)}).url)).reason == reason


def test_https_to_a_plain_server_advises_http(http_server: Serve, scraper: Scrape) -> None:
    server = http_server({"/metrics": PAGE})
    error = failure(scraper(server.url.replace("http:", "https:")))
    assert error.reason == "tls"
    assert "http://" in error.message


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that only those trust who are told to; its key is beside it as key.pem."""
    folder = tmp_path_factory.mktemp("tls")
    ask = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    ask += " -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    try:
        subprocess.run(ask.split(), cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("NOT TESTED: TLS needs openssl on this machine")
    return folder / "cert.pem"


def test_tls_trusts_the_given_certificates_only(
    http_server: Serve, scraper: Scrape, certificate: Path, tmp_path: Path
) -> None:
    server = http_server({"/metrics": PAGE})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    # Handshakes happen in the connection's own thread, so that a refused one does not stop the server.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that refuses is meant here
    url = server.url.replace("http:", "https:")
    one = scraper(url, ca_file=certificate, total_timeout=5, read_timeout=5)
    assert [one.fetch().text for _ in range(2)] == [PAGE.decode()] * 2
    assert server.connections == 1
    assert failure(scraper(url, ca_file=tmp_path / "none.pem")).reason == "tls"
    stranger, asked = scraper(url), len(server.requests)
    for _ in range(2):
        error = failure(stranger)
        assert error.reason == "tls"
        assert "not trusted" in error.message
    assert len(server.requests) == asked, "nothing is sent over a connection that was not agreed on"


def test_d07_one_target_never_has_two_requests_in_flight(http_server: Serve, scraper: Scrape) -> None:
    came, go_on = threading.Event(), threading.Event()
    running: list[int] = []
    most: list[int] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        running.append(1)
        most.append(len(running))
        came.set()
        go_on.wait(30)
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PAGE) + PAGE)
        running.pop()

    server = http_server({"/metrics": answer})
    one = scraper(server.url, read_timeout=30, total_timeout=30)
    first = threading.Thread(target=one.fetch, daemon=True)
    first.start()
    assert came.wait(30)
    for _ in range(3):
        assert failure(one).reason == "busy"
    go_on.set()
    first.join(30)
    one.fetch()
    assert (len(server.requests), max(most)) == (2, 1)


def test_close_ends_a_scrape_that_runs(http_server: Serve, scraper: Scrape) -> None:
    came = threading.Event()

    def hang(request: BaseHTTPRequestHandler) -> None:
        assert isinstance(request.server, HttpServer)
        came.set()
        request.server.stopping.wait(30)

    one = scraper(http_server({"/metrics": hang}).url, read_timeout=30, total_timeout=30)
    errors = []
    thread = threading.Thread(target=lambda: errors.append(failure(one)), daemon=True)
    thread.start()
    assert came.wait(30)
    one.close()
    thread.join(5)
    assert len(errors) == 1


def test_failed_scrapes_leave_no_connection_open(http_server: Serve, scraper: Scrape) -> None:
    server = http_server({"/metrics": Reply(b"x" * 100_000, 500)})
    one = scraper(server.url)
    failure(one)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        failure(one)
    # The server's half of a connection is in this process too and closes in its own time.
    assert len(os.listdir("/proc/self/fd")) < before + 30
