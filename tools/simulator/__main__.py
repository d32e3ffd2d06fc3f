"""python -m tools.simulator KIND --seed N --out DIR: an incident as a recording, or live with --serve."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from tools.simulator.judge import counts
from tools.simulator.recording import write
from tools.simulator.scenarios import KINDS, scenario
from tools.simulator.server import serve as serve_fleet
from tools.simulator.simulation import Fleet


def run(
    kind: Annotated[str, typer.Argument(help=f"One of: {', '.join(KINDS)}.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same incident.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Write a recording into this new folder.")] = None,
    interval: Annotated[float, typer.Option(help="Seconds between pages.", min=0.1)] = 2.0,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the pages on loopback in real time instead.")] = False,
    listen: Annotated[str, typer.Option(help="First target's address; others take the next ports.")] = "127.0.0.1:0",
    speed: Annotated[float, typer.Option(help="With --serve: times as fast.", min=0.1)] = 1.0,
) -> None:
    """A simulated incident on vLLM servers: a recording in DIR, or live pages."""
    try:
        made = scenario(kind, seed)
        if serve:
            with serve_fleet(Fleet(made.config, seed), listen, speed) as live:
                print(f"{kind} (seed {seed}): {made.story}; from {made.onset:.0f} s", file=sys.stderr)
                print(*(f"{name} {url}/metrics" for name, url in live.urls.items()), sep="\n", flush=True)
                while live.seconds < made.duration:
                    time.sleep(0.2)
        elif out:
            fleet = write(made, out, interval)
            felt = "users feel it" if made.misses else "users are served well"
            sure = felt if counts(made, fleet.requests) else "but it does not count: these sizes came out too mild"
            print(f"{out}: {kind} (seed {seed}), {made.duration:.0f} s: {made.story}; {sure}", file=sys.stderr)
        else:
            raise ValueError("say --out DIR or --serve")
    except (ValueError, OSError) as error:
        print(f"simulator: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


if __name__ == "__main__":
    typer.run(run)
