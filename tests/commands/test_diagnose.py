"""What `diagnose` exits with."""

import pytest

from fleets import engine, fleet, model, target
from phasewatch.commands.diagnose import exit_code
from phasewatch.core.model import State


@pytest.mark.parametrize(
    ("state", "verdict", "code"),
    [
        ("serving", "healthy", 0),
        ("serving", None, 3),  # nothing to judge yet
        ("serving", "unknown", 1),
        ("idle", None, 0),
        ("warming_up", None, 3),
        ("stale", None, 1),
    ],
)
def test_too_little_for_a_verdict_is_3_and_anything_else_but_healthy_1(
    state: State, verdict: str | None, code: int
) -> None:
    one = engine(state=state, verdict=verdict)
    assert exit_code(fleet((one,), (model({state: 1}),), (target(),))) == code
