"""Agents that work together: teams with a plan, chains and bridges; and ready-made agents."""

from typing import TYPE_CHECKING, Any

from upcall.teams.bridges import bridge
from upcall.teams.chains import Chain, branch, chain, fan_out
from upcall.teams.team import Team

if TYPE_CHECKING:
    from upcall.teams.presets import SubAgent, coder_agent, deep_agent

__all__ = ["Chain", "SubAgent", "Team", "branch", "bridge", "chain", "coder_agent", "deep_agent", "fan_out"]


def __getattr__(name: str) -> Any:
    """Import the presets, and the whole kit with them, when they are first used: most teams don't need them."""
    if name in ("SubAgent", "coder_agent", "deep_agent"):
        from upcall.teams import presets

        return getattr(presets, name)
    raise AttributeError(f"module 'upcall.teams' has no attribute {name!r}")
