"""A YAML file that remembers where everything stands, so that every complaint names file, line and key."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails

Loc = tuple[str | int, ...]
# A configuration is written by hand; more than this is another file given by mistake.
MAX_BYTES = 4 * 1024 * 1024
_MOST_DIGITS = 20  # of 2^64


class FileError(Exception):
    """What is wrong with a file: one line each, ready to print."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class ProblemsError(ValueError):
    """Several things wrong below one field; each with its place relative to that field."""

    def __init__(self, problems: Sequence[tuple[Loc, str]]) -> None:
        super().__init__("; ".join(message for _, message in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class YamlFile:
    """data: what the file says. root: the same with line marks."""

    name: str
    data: Any
    root: yaml.Node | None

    def told(self, loc: Loc, message: str) -> str:
        """FILE:LINE: key.path: message."""
        line, path = self.place(loc)
        where = self.name if self.root is None else f"{self.name}:{line}"
        return f"{where}: {path}: {message}" if path else f"{where}: {message}"

    def place(self, loc: Loc) -> tuple[int, str]:
        """Line (from 1) and written path of the deepest part of `loc` that the file has.

        A last key that is missing is named too; what lies below a scalar is our own doing (a short form) and is not.
        """
        line, path, node = 1, "", self.root
        if node is not None:
            line = node.start_mark.line + 1
        for part in loc:
            if isinstance(node, yaml.ScalarNode):
                break
            step = _step(node, part)
            if step is not None:
                line, node = step
            else:
                node = None
            path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
        return line, path


def _step(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        child = node.value[part]
        return child.start_mark.line + 1, child
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):
            if key.value == str(part):
                return key.start_mark.line + 1, value
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if (found := _step(merged, part)) is not None:
                        return found
    return None


def _nodes(root: yaml.Node | None) -> Iterator[yaml.Node]:
    """Each once, however many aliases name it."""
    seen: set[int] = set()
    nodes = [root]
    while nodes:
        current = nodes.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, yaml.MappingNode):
            nodes.extend(one for pair in current.value for one in pair)
        elif isinstance(current, yaml.SequenceNode):
            nodes.extend(current.value)


def _repeated_keys(root: yaml.Node | None) -> Iterator[tuple[int, str, int]]:
    for node in _nodes(root):
        first: dict[str, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in first:
                yield line, key.value, first[key.value]
            first.setdefault(key.value, line)


def _too_long_numbers(root: yaml.Node | None) -> Iterator[tuple[int, int]]:
    """Line and number of digits: whole numbers that no number of a computer holds."""
    for node in _nodes(root):
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > _MOST_DIGITS:
            yield node.start_mark.line + 1, len(node.value)


def read_yaml(path: Path) -> YamlFile:
    """A mapping, an empty one where the file says nothing. Raises FileError: as read_any, or not a mapping."""
    file = read_any(path)
    if file.data is None:
        return YamlFile(file.name, {}, None)
    if not isinstance(file.data, dict):
        must = f"must be a mapping (key: value), not {kind(file.data)}"
        raise FileError(f"{file.name}:1: {must}; see config/phasewatch.yml")
    return file


def read_any(path: Path) -> YamlFile:
    """Raises FileError: missing, unreadable, no YAML, or a duplicate key."""
    name = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise FileError(f"{name}: no such file; check the path") from None
    except IsADirectoryError:
        raise FileError(f"{name}: is a folder, not a file; give the YAML file in it") from None
    except OSError as error:
        raise FileError(f"{name}: cannot be read ({error.strerror}); check the path and its permissions") from None
    if len(raw) > MAX_BYTES:
        raise FileError(f"{name}: is larger than {MAX_BYTES // 1024 // 1024} MiB; give a configuration file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FileError(f"{name}:{line}: invalid UTF-8; save it as UTF-8") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise FileError(f"{name}:{line}: invalid YAML ({_yaml_problem(error)}); correct this line") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise FileError(f"{name}:{line}: holds a character that YAML does not allow; remove it") from None
    except RecursionError:
        raise FileError(f"{name}: is nested too deeply; a configuration needs no more than five levels") from None
    except ValueError as error:
        raise FileError(f"{name}: holds a value that YAML cannot read ({error}); put it in quotes") from None
    if numbers := sorted(_too_long_numbers(root)):
        raise FileError(
            *(f"{name}:{line}: holds a number of {digits} digits; write a smaller one" for line, digits in numbers)
        )
    if repeated := sorted(_repeated_keys(root)):
        raise FileError(
            *(
                f"{name}:{line}: {key}: duplicate key (first on line {before}); keep one"
                for line, key, before in repeated
            )
        )
    return YamlFile(name, data, root)


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    text = error.problem or error.context or "syntax"
    if "'\\t'" in text:
        return "a tab; YAML indents with spaces"
    return " ".join(text.split())


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"), ((int, float), "a number"), (str, "text"), (dict, "a mapping"),
    ((list, tuple), "a list"), (type(None), "nothing"),
)  # fmt: skip


def kind(value: object) -> str:
    """What a value is, in words."""
    return next((name for types, name in _KINDS if isinstance(value, types)), "a date")


def nearest(word: str, known: Iterable[str]) -> str:
    """What to write instead of a word that is not known."""
    known = list(known)
    if close := difflib.get_close_matches(word, known, n=1, cutoff=0.6):
        return f'did you mean "{close[0]}"?'
    if not known:
        return "remove it"
    return f"use {'one of ' if len(known) > 1 else ''}{', '.join(known)}"


def complaints(error: ErrorDetails, model: type[BaseModel]) -> list[tuple[Loc, str]]:
    """A pydantic error as (place, "what is wrong; what to do")."""
    loc, given, context = error["loc"], error["input"], error.get("ctx", {})
    inner = context.get("error")
    if isinstance(inner, ProblemsError):
        return [((*loc, *place), message) for place, message in inner.problems]
    if error["type"] == "value_error":
        return [(loc, str(inner))]
    if error["type"] == "extra_forbidden":
        return [(loc, f"unknown key; {nearest(str(loc[-1]), _keys(model, loc[:-1]))}")]
    if error["type"] == "literal_error":
        words = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        return [(loc, f"unknown value {given!r}; {nearest(str(given), words)}")]
    if error["type"] == "invalid_key" or loc[-1:] == ("[key]",):
        return [(loc[:-1], f"the key {given!r} is {kind(given)}, not text; put it in quotes")]
    return [(loc, _MESSAGES.get(error["type"], "{msg}; see config/phasewatch.yml").format(
        given=kind(given), msg=error["msg"], **context))]  # fmt: skip


_NUMBER = "must be a number, not {given}; write it without unit or quotes"
_WHOLE = "must be a whole number, not {given}; write it without unit, point or quotes"
_MAPPING = "must be a mapping (key: value), not {given}; indent its keys below it"
_LIST = "must be a list, not {given}; start each entry with '- '"
_MESSAGES: Mapping[str, str] = {
    "missing": "is missing; add it",
    "string_type": "must be text, not {given}; put it in quotes",
    "path_type": "must be a path, not {given}; write one path",
    "model_type": _MAPPING,
    "dict_type": _MAPPING,
    "tuple_type": _LIST,
    "list_type": _LIST,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _NUMBER,
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "greater_than": "must be above {gt}; choose a larger value",
    "greater_than_equal": "must be at least {ge}; choose a larger value",
    "less_than_equal": "must be at most {le}; choose a smaller value",
    "too_short": "must have at least {min_length} entries; add one",
    "too_long": "must have at most {max_length} entries; remove some",
}


def _keys(model: type[BaseModel], loc: Loc) -> list[str]:
    """The keys that `model` knows at `loc`."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    node: dict[str, Any] = schema
    for part in (*loc, None):
        # A reference, or the one alternative to null.
        while "$ref" in node or "anyOf" in node:
            node = definitions[node["$ref"].rsplit("/", 1)[-1]] if "$ref" in node else node["anyOf"][0]
        if isinstance(part, int):
            node = node.get("items", {})
        elif part is not None:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    return list(node.get("properties", {}))
