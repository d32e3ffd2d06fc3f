"""The Dockerfile, tried as far as that goes without a daemon: its own commands run in a folder instead of an image."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import phasewatch
import support
from support import ROOT, HttpServer, wait_until

PORT = "9321"
# The image takes half a minute to make: one worker runs all of this file.
pytestmark = pytest.mark.xdist_group("image")


@dataclass(frozen=True)
class Step:
    keyword: str
    text: str

    def exec_form(self) -> list[str]:
        return list(json.loads(self.text[self.text.index("[") :]))


def _steps() -> list[list[Step]]:
    """The instructions of each stage."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    logical = "\n".join(lines).replace("\\\n", " ")
    stages: list[list[Step]] = []
    for line in filter(None, map(str.strip, logical.splitlines())):
        keyword, text = line.split(maxsplit=1)
        if keyword == "FROM":
            stages.append([])
        stages[-1].append(Step(keyword, text))
    return stages


def _only(stage: list[Step], keyword: str) -> Step:
    [step] = [step for step in stage if step.keyword == keyword]
    return step


class Image:
    """The stages run with / moved into a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.build, self.final = _steps()

    def moved(self, text: str) -> str:
        return re.sub(r"(?<![\w.*\]/-])/(?=(opt|etc|src)\b)", f"{self.root}/", text)

    def make(self) -> None:
        folder = Path(self.moved(_only(self.build, "WORKDIR").text))
        folder.mkdir(parents=True)
        env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(self.root)}
        env |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        for step in self.build:
            if step.keyword == "ENV":
                env |= dict(pair.split("=", 1) for pair in shlex.split(step.text))
            elif step.keyword == "COPY":
                *sources, target = step.text.split()
                for source in sources:
                    self._copy(ROOT / source, folder / target, target.endswith("/"))
            elif step.keyword == "RUN":
                command = self.moved(step.text)
                ran = subprocess.run(
                    ["/bin/sh", "-c", command], cwd=folder, env=env, capture_output=True, text=True, check=False
                )
                assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        for step in self.final:
            if step.keyword == "COPY":
                option, source, target = step.text.split()
                assert option == "--from=build"
                if self.moved(source) != self.moved(target):
                    shutil.copytree(self.moved(source), self.moved(target))

    @staticmethod
    def _copy(source: Path, target: Path, into: bool) -> None:
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            return
        where = target / source.name if into else target
        where.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, where)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    made = Image(tmp_path_factory.mktemp("image"))
    made.make()
    return made


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    ran = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_image_runs_as_a_number_and_stops_on_a_signal_phasewatch_hears() -> None:
    final = _steps()[-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", _only(final, "USER").text)
    assert _only(final, "STOPSIGNAL").text == "SIGTERM"
    assert _only(final, "EXPOSE").text == PORT
    assert f"VERSION={phasewatch.__version__}" in [step.text for step in final if step.keyword == "ARG"]


def test_what_is_copied_is_what_the_ignore_file_lets_through() -> None:
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")}
    copied = [step.text.split()[:-1] for step in _steps()[0] if step.keyword == "COPY"]
    assert {source.split("/")[0] for sources in copied for source in sources} == allowed
    assert "*" in patterns


def test_the_commands_of_the_image_make_a_phasewatch_that_runs(image: Image, tmp_path: Path) -> None:
    entry = [image.moved(word) for word in _only(image.final, "ENTRYPOINT").exec_form()]
    ran = subprocess.run([*entry, "--version"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert phasewatch.__version__ in ran.stdout
    ran = subprocess.run([*entry, "export", "all", "--out", "out"], cwd=tmp_path, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    exported = {path.name for path in (tmp_path / "out").rglob("*")}
    assert {path.name for path in (ROOT / "grafana" / "dashboards").iterdir()} <= exported
    assert {path.name for path in (ROOT / "config" / "prometheus" / "rules").iterdir()} <= exported
    python = Path(entry[0]).with_name("python")
    where = subprocess.run(
        [python, "-c", "import phasewatch; print(phasewatch.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(image.root)), "the wheel's package is used, not the checkout's"


def test_the_image_serves_is_healthy_and_stops_within_five_seconds(
    image: Image, tmp_path: Path, http_server: Callable[..., HttpServer]
) -> None:
    port = str(support.free_port())
    target = http_server({"/metrics": b"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1\n"})

    def words(keyword: str) -> list[str]:
        return [
            image.moved(word).replace("0.0.0.0", "127.0.0.1").replace(PORT, port)
            for word in _only(image.final, keyword).exec_form()
        ]

    log = tmp_path / "log"
    with log.open("wb") as out:
        service = subprocess.Popen(
            [*words("ENTRYPOINT"), *words("CMD")],
            cwd=tmp_path,
            env={"VLLM_TARGETS": target.url, "HTTP_PROXY": "http://127.0.0.1:9"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(
            lambda: (
                service.poll() is not None
                or subprocess.run(words("HEALTHCHECK"), capture_output=True, check=False).returncode == 0
            ),
            "the image's own health check passes",
        )
        assert service.poll() is None, log.read_text()
        service.send_signal(signal.Signals[_only(image.final, "STOPSIGNAL").text])
        assert service.wait(5) == 0, log.read_text()
    finally:
        if service.poll() is None:
            service.kill()
            service.wait()
    assert subprocess.run(words("HEALTHCHECK"), capture_output=True, check=False).returncode != 0
