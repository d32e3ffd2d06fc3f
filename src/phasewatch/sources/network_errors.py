"""What went wrong below HTTP, in words for people; the libraries' own texts are of classes and objects."""

import errno
import http.client
import os
import socket
import ssl
from collections.abc import Iterator

import urllib3


def explain(error: BaseException, connect: float, read: float) -> tuple[str, str]:
    """(reason of scrape.REASONS, one line) for what urllib3, http.client or the system raised.

    connect, read: the timeouts in force, in seconds.
    """
    chain = list(causes(error))
    # That no connection could be made at all is one of these, too, to urllib3.
    if type(error) is urllib3.exceptions.ConnectTimeoutError:
        return (
            "timeout",
            f"no connection within {connect:g} s; check that the server is up and that no firewall blocks it",
        )
    # With a number it is the system that gave a connection up.
    if any(isinstance(e, TimeoutError) and e.errno is None for e in chain):
        return "timeout", f"no data for {read:g} s; the server is overloaded or hangs"
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                "tls",
                f"certificate not trusted ({cause.verify_message}); set ca_file, or check the host name",
            )
        if isinstance(cause, ssl.SSLError):
            return "tls", "TLS handshake failed; if the server speaks plain HTTP, use http://"
        if isinstance(cause, socket.gaierror):
            return "connect", "the host name does not resolve; check its spelling and the DNS"
        if isinstance(cause, http.client.IncompleteRead):
            return "truncated", "the response ended before its announced length; the whole scrape is discarded"
    number = system_error(error)
    if number == errno.ECONNREFUSED:
        return "connect", "connection refused; check the port, and that the server is up"
    if number is not None:
        return "connect", f"{lower_first(os.strerror(number))}; check the address and the network"
    if any(isinstance(e, http.client.RemoteDisconnected) for e in chain):
        return "connect", "connection closed without a response; if the server expects TLS, use https://"
    return "protocol", "the response is not valid HTTP; check the port"


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it came from; libraries hide the system's error in arguments, reasons and causes."""
    waiting, seen = [error], set()
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        hidden = (*current.args, getattr(current, "reason", None), current.__cause__, current.__context__)
        waiting += [inner for inner in hidden if isinstance(inner, BaseException)]


def system_error(error: BaseException) -> int | None:
    numbers = (cause.errno for cause in causes(error) if isinstance(cause, OSError) and cause.errno in errno.errorcode)
    return next(numbers, None)


def lower_first(text: str | None) -> str:
    return text[:1].lower() + text[1:] if text else "cannot be read"
