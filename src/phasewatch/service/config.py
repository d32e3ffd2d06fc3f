"""config/phasewatch.yml -> Config. Every complaint is one line: FILE:LINE: key.path: what is wrong; what to do."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from phasewatch.core import settings as core
from phasewatch.core.durations import format_duration
from phasewatch.service.config_sections import Config, LimitsSection
from phasewatch.service.discovery import TARGETS_VARIABLE, Given, discovered
from phasewatch.service.yamlfile import FileError, Loc, YamlFile, complaints, read_yaml

_TOKEN_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
# Edges of vLLM's own histograms, 0.8.5 to 0.33; operators may override them since 0.32, so they serve for advice only.
DEFAULT_EDGES: Mapping[str, tuple[float, ...]] = {
    "ttft": (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
             2560),
    "itl": _TOKEN_EDGES,
    "tpot": _TOKEN_EDGES,
    "e2e": (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
}  # fmt: skip


class ConfigError(FileError):
    """The configuration cannot be used. `lines`: one a mistake."""


@dataclass(frozen=True, slots=True)
class _Layers:
    """The file with environment and flags worked in; `origin` says which keys came from where."""

    file: YamlFile
    data: dict[Any, Any]
    origin: Mapping[Loc, str]

    def line(self, loc: Loc, message: str) -> str:
        source = next((place for place in self.origin if loc[: len(place)] == place), None)
        if source is None:
            return self.file.told(loc, message)
        # Whoever only writes an address has written no key for it.
        below = ".".join(str(part) for part in loc[len(source) :] if part != "url")
        return f"{self.origin[source]}: {below}: {message}" if below else f"{self.origin[source]}: {message}"


def _layers(path: Path | None, flags: Mapping[str, object], env: Mapping[str, str]) -> _Layers:
    try:
        file = read_yaml(path) if path is not None else YamlFile("configuration", {}, None)
        found = discovered(Given(file.data, None if path is None else path.parent, env))
    except FileError as error:
        raise ConfigError(*error.lines) from None
    data = dict(file.data)
    origin: dict[Loc, str] = {}
    listed = data.get("targets") or []
    if found and isinstance(listed, list):
        data["targets"] = [*listed, *(one.target for one in found)]
        origin |= {("targets", len(listed) + number): one.where for number, one in enumerate(found)}
    for key, value in flags.items():
        section, _, entry = key.rpartition(".")
        if value is not None and isinstance(data.get(section) or {}, dict):
            data[section] = {**(data.get(section) or {}), entry: value}
            origin[section, entry] = f"--{key.replace('_', '-')}"
    return _Layers(file, data, origin)


def load_config(
    path: Path | None, *, flags: Mapping[str, object] | None = None, env: Mapping[str, str] | None = None
) -> Config:
    """The configuration of `path` (None: no file), flags over the file over the defaults.

    flags: values by dotted key, such as {"web.listen_address": ":9321"}; None is not given. env: where VLLM_TARGETS
    is looked up when nothing else names a target. Raises ConfigError that names every mistake.
    """
    layers = _layers(path, flags or {}, os.environ if env is None else env)
    return _validated(layers)


def _validated(layers: _Layers) -> Config:
    found: list[tuple[Loc, str]] = []
    config = None
    if layers.data.get("targets") in (None, [], ()):
        advice = f"add one below targets:, such as - http://vllm-0:8000, or set {TARGETS_VARIABLE}=http://vllm-0:8000"
        found.append((("targets",), f"no target; {advice}"))
    folder = Path(layers.file.name).parent if layers.file.root is not None else None
    try:
        config = Config.model_validate(layers.data, context={"folder": folder})
    except ValidationError as error:
        for details in error.errors(include_url=False):
            found += complaints(details, Config)
    if found or config is None:
        by_line = sorted(found, key=lambda item: layers.file.place(item[0])[0])
        raise ConfigError(*dict.fromkeys(layers.line(loc, message) for loc, message in by_line))
    return config


def check_config(path: Path, *, env: Mapping[str, str] | None = None) -> tuple[Config, tuple[str, ...]]:
    """The configuration and what is legal in it but probably not meant, one line each. Raises ConfigError."""
    layers = _layers(path, {}, os.environ if env is None else env)
    config = _validated(layers)
    return config, tuple(
        layers.line(loc, message) for loc, message in (*_edge_warnings(config), *_file_warnings(config))
    )


def _edge_warnings(config: Config) -> Iterable[tuple[Loc, str]]:
    sections: list[tuple[Loc, LimitsSection]] = [(("objectives",), config.objectives)]
    sections += [(("objectives", "models", name), section) for name, section in config.objectives.models.items()]
    for place, section in sections:
        for name, limit in section.limits().items():
            family, _, statistic = name.partition("_")
            edges = DEFAULT_EDGES[family]
            if statistic == "mean" or limit == core.OFF:
                continue
            for level in dict.fromkeys((limit.warning, limit.critical)):
                if level not in edges:
                    below = max((edge for edge in edges if edge < level), default=None)
                    above = min((edge for edge in edges if edge > level), default=None)
                    near = " and ".join(format_duration(edge) for edge in (below, above) if edge is not None)
                    yield (
                        (*place, name),
                        (
                            f"{format_duration(level)} is not an edge of vLLM's default buckets, so values near it are"
                            f" neither surely missed nor surely met; the nearest edges are {near}"
                        ),
                    )


def _file_warnings(config: Config) -> Iterable[tuple[Loc, str]]:
    for index, target in enumerate(config.targets):
        for key, path in (("bearer_token_file", target.bearer_token_file), ("tls.ca_file", target.tls.ca_file)):
            # Trusted certificates may be a folder; a token is one word in one file.
            no_file = key == "bearer_token_file" and path is not None and path.is_dir()
            if path is not None and (no_file or not os.access(path, os.R_OK)):
                yield ("targets", index, *key.split(".")), f"cannot read {path}; check the path and its permissions"
