"""`phasewatch check-rules`."""

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import requests

import phasewatch
from phasewatch.commands import EXIT_UNHEALTHY, CommandError
from phasewatch.commands.common import note, target_of
from phasewatch.rulecheck.check import check
from phasewatch.rulecheck.expression import ERROR
from phasewatch.rulecheck.series import NEWEST, OLDEST, Known
from phasewatch.service.yamlfile import FileError
from phasewatch.shipped import RULES
from phasewatch.sources.http import ScrapeError, Scraper
from phasewatch.sources.network_errors import explain

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)", re.MULTILINE | re.ASCII)
# Prometheus' list of all names; anything else is a page of metrics.
_NAMES_PATH = "/api/v1/label/__name__/values"
_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0


def run(paths: Sequence[Path], against: Sequence[str], versions: Sequence[str]) -> int:
    """Findings go to stdout, one a line, a summary to stderr. Returns the exit code."""
    for version in versions:
        if not _VERSION.fullmatch(version):
            raise CommandError(f"--vllm {version}: is no version of vLLM; write it as {NEWEST} or 0.32")
    files = list(paths) or _own_rules()
    live = {name for url in against for name in live_names(url)}
    try:
        findings = check(files, Known(versions or (NEWEST,), live))
    except FileError as error:
        raise CommandError(*error.lines) from None
    for finding in findings:
        print(finding)
    errors = sum(finding.severity == ERROR for finding in findings)
    asked = ", ".join(versions) or f"{NEWEST} (names are known from {OLDEST} on)"
    note(f"{len(files)} file(s), vLLM {asked}: {errors} error(s), {len(findings) - errors} warning(s)")
    return EXIT_UNHEALTHY if errors else 0


def _own_rules() -> list[Path]:
    package = Path(phasewatch.__file__).parent
    in_wheel = package / "shipped"
    return sorted(((in_wheel if in_wheel.is_dir() else package.parents[1]) / RULES).glob("*.yml"))


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
