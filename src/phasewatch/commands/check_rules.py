"""`phasewatch check-rules`."""

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import requests
import typer

from phasewatch.commands import EXIT_UNHEALTHY, CommandError
from phasewatch.commands.common import note, target_of
from phasewatch.rulecheck.series import NEWEST, OLDEST, Known
from phasewatch.service.yamlfile import FileError
from phasewatch.shipped import RULES, folder_of
from phasewatch.sources.http import ScrapeError, Scraper
from phasewatch.sources.network_errors import explain

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)", re.MULTILINE | re.ASCII)
# Prometheus' list of all names; anything else is a page of metrics.
_NAMES_PATH = "/api/v1/label/__name__/values"
_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0


def command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILES]...", help="Prometheus rule files.", show_default="the rules of phasewatch"),
    ] = None,
    against: Annotated[
        list[str],
        typer.Option(
            metavar="URL",
            help="A running server whose names count too: a /metrics, or a Prometheus' /api/v1/label/__name__/values.",
        ),
    ] = [],  # noqa: B006
    vllm: Annotated[
        list[str],
        typer.Option(metavar="VERSION", help="vLLM version in use; may be given several times.", show_default="newest"),
    ] = [],  # noqa: B006
) -> None:
    """Names by vLLM version, and units of limits and notifications. Run pint and promtool beside it for all else.

    Needs promql-parser: pip install 'phasewatch[rules]'.

    Exit code 0: nothing wrong (there may be warnings). 1: errors. 2: wrong usage, or a file could not be read."""
    try:
        from phasewatch.rulecheck.check import check, without_runbook
        from phasewatch.rulecheck.expression import ERROR
    except ModuleNotFoundError as error:
        raise CommandError(
            f"check-rules needs {error.name}; install it with: pip install 'phasewatch[rules]'"
        ) from None
    for version in vllm:
        if not _VERSION.fullmatch(version):
            raise CommandError(f"--vllm {version}: invalid version; use {NEWEST} or 0.32")
    paths = files or _own_rules()
    live = {name for url in against for name in live_names(url)}
    try:
        findings = check(paths, Known(vllm or (NEWEST,), live))
        bare = without_runbook(paths)
    except FileError as error:
        raise CommandError(*error.lines) from None
    for finding in findings:
        print(finding)
    errors = sum(finding.severity == ERROR for finding in findings)
    asked = ", ".join(vllm) or f"{NEWEST} (names are known from {OLDEST} on)"
    note(f"{len(paths)} file(s), vLLM {asked}: {errors} error(s), {len(findings) - errors} warning(s)")
    if bare:
        note(f"hint: {bare} alert(s) without runbook_url; a link in the notification says what to do")
    raise typer.Exit(EXIT_UNHEALTHY if errors else 0)


def _own_rules() -> list[Path]:
    return sorted(Path(str(folder_of(RULES))).glob("*.yml"))


def live_names(url: str) -> set[str]:
    """Every series name that a page of metrics, or a Prometheus, shows. Raises CommandError."""
    if _NAMES_PATH in url:
        return _names_of_prometheus(url)
    scraper = Scraper(target_of(url))
    try:
        text = scraper.fetch().text
    except ScrapeError as error:
        raise CommandError(f"--against {error.message}") from None
    finally:
        scraper.close()
    return set(_SAMPLE.findall(text))


def _names_of_prometheus(url: str) -> set[str]:
    shown = urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl()
    try:
        answer = requests.get(url, timeout=(_CONNECT_SECONDS, _READ_SECONDS))
        names = answer.json()["data"] if answer.ok else None
    except requests.JSONDecodeError:
        names = None
    except requests.RequestException as error:
        raise CommandError(f"--against {shown}: {explain(error, _CONNECT_SECONDS, _READ_SECONDS)[1]}") from None
    except (KeyError, TypeError):
        names = None
    if not isinstance(names, list):
        raise CommandError(
            f"--against {shown}: answered {answer.status_code} without a list of names; check the address"
        )
    return {str(name) for name in names}
