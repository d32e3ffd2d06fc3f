"""`python -m tools.dashboards [FOLDER]` writes every dashboard; the default folder is grafana/dashboards."""

import sys
from pathlib import Path

from tools.dashboards import capacity, engine, fleet, itself, objectives, triage
from tools.dashboards.build import to_json
from tools.dashboards.panels import Dashboard

DASHBOARDS: tuple[Dashboard, ...] = tuple(
    module.BOARD for module in (fleet, triage, engine, objectives, capacity, itself)
)


def files() -> dict[str, str]:
    """Text by file name."""
    return {f"{row.uid}.json": to_json(row) for row in DASHBOARDS}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("grafana/dashboards")
    folder.mkdir(parents=True, exist_ok=True)
    written = files()
    for stale in set(folder.glob("phasewatch-*.json")) - {folder / name for name in written}:
        stale.unlink()
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
