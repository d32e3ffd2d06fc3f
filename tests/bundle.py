"""docker-compose.yml as Compose reads it, and its services run without Docker, where their programs can be had."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

import support
from support import ROOT, Tools, wait_until

BIN = Path(sys.executable).parent
# The stack has to start, and the incident comes 14 s after the replicas do: no measure of speed, only an end.
PATIENCE_SECONDS = 240.0


def compose(*arguments: str, **environment: str) -> Any:
    """What Compose understands: the document of `docker-compose ARGUMENTS config`."""
    command = [str(BIN / "docker-compose"), *arguments, "config", "--format", "json"]
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return json.loads(ran.stdout)


class Bundle:
    """Services of one profile in a folder: mounted files are copied and read with other ports, volumes are folders."""

    def __init__(self, services: dict[str, Any], folder: Path, tools: Tools | None) -> None:
        self.services = services
        self.folder = folder
        self.tools = tools
        self._moved: dict[tuple[str, str], int] = {}
        for name, service in services.items():
            inside = [*map(str, service.get("expose", [])), *(str(p["target"]) for p in service.get("ports", []))]
            for port, free in zip(inside, _free_ports(len(inside)), strict=True):
                for alias in [name, *((service["networks"]["default"] or {}).get("aliases", []))]:
                    self._moved[alias, port] = free

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._moved[name, str(self.services[name]['ports'][0]['target'])]}"

    def moved(self, name: str, text: str) -> str:
        """The text with addresses and paths of a service's container as they are here."""
        places = {mount["target"]: str(self._place(name, mount)) for mount in self.services[name].get("volumes", [])}
        addresses = {f"{host}:{port}": f"127.0.0.1:{free}" for (host, port), free in self._moved.items()}
        own = {port: free for (host, port), free in self._moved.items() if host == name}
        for host in ("0.0.0.0", "127.0.0.1"):
            addresses |= {f"{host}:{port}": f"127.0.0.1:{free}" for port, free in own.items()}
        table = places | addresses
        pattern = "|".join(rf"(?<![\w./-]){re.escape(old)}(?![\w-])" for old in sorted(table, key=len, reverse=True))
        # An address may follow the slashes of a URL.
        pattern += "|" + "|".join(rf"(?<=//){re.escape(old)}(?!\w)" for old in addresses)
        return re.sub(pattern, lambda match: table[match[0]], text)

    def _place(self, name: str, mount: Any) -> Path:
        return self.folder / name / str(mount["target"]).strip("/").replace("/", "-")

    def lay(self, name: str, change: Callable[[str], str]) -> None:
        """Copies what a service mounts, each file with `change`."""
        for mount in self.services[name].get("volumes", []):
            place = self._place(name, mount)
            if mount["type"] == "volume":
                place.mkdir(parents=True)
                continue
            source = Path(mount["source"])
            for file in [source] if source.is_file() else filter(Path.is_file, source.rglob("*")):
                copy = place / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(change(self.moved(name, file.read_text())))

    def command(self, name: str) -> list[str]:
        service = self.services[name]
        image = service["image"].partition(":")[0]
        given = [self.moved(name, word) for word in service["command"]]
        if image == "phasewatch":
            return [str(BIN / "phasewatch"), *given]
        assert self.tools is not None
        program = {"prom/prometheus": self.tools.prometheus, "prom/alertmanager": self.tools.alertmanager}[image]
        # Both listen on their usual port of every interface where nothing is said.
        return [str(program), *given, f"--web.listen-address={self.url(name).removeprefix('http://')}"]

    @contextmanager
    def run(self, name: str, change: Callable[[str], str] = str) -> Iterator[subprocess.Popen[bytes]]:
        """The service from when it is healthy, by its own check, to the end of the block."""
        (self.folder / name).mkdir()
        self.lay(name, change)
        log = self.folder / name / "log"
        at_home = self.tools is not None and "alertmanager" in self.services[name]["image"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.command(name),
                cwd=self.tools.alertmanager_home if at_home and self.tools else self.folder / name,
                env={"PATH": os.environ["PATH"], **self.services[name].get("environment", {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(
                lambda: process.poll() is not None or self.healthy(name), f"{name} is healthy", PATIENCE_SECONDS, 0.2
            )
            assert process.poll() is None, f"{name} ended:\n{log.read_text()}"
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE_SECONDS)

    def healthy(self, name: str) -> bool:
        _, program, *words = self.services[name]["healthcheck"]["test"]
        words = [self.moved(name, word) for word in words]
        if program == "python":
            ran = subprocess.run([sys.executable, *words], capture_output=True, check=False)
            return ran.returncode == 0
        # busybox's wget may not be here.
        assert (program, words[0]) == ("wget", "-Y")
        try:
            return requests.get(words[-1], timeout=5).ok
        except requests.RequestException:
            return False


def _free_ports(count: int) -> list[int]:
    """Free ports in a row."""
    while True:
        first = support.free_port()
        try:
            for port in range(first + 1, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            continue
        return list(range(first, first + count))
