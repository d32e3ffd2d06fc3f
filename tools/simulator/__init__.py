"""Simulated vLLM servers that speak 0.32's page format: seeded, without wall time, or live on loopback.

    fleet = Fleet(config, seed); fleet.advance(60.0); fleet.page("demo")

Sizes come from physics (compute-bound prefill, bandwidth-bound decode), never from phasewatch's rules: the simulator
is an independent judge of them.
"""

from tools.simulator.config import Config, Server
from tools.simulator.simulation import DownError, Fleet, Simulator

__all__ = ["Config", "DownError", "Fleet", "Server", "Simulator"]
