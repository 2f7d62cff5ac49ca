"""Agents that work together: teams with a plan, chains, bridges, and the agents people start from.

May import: teams.bridges, teams.chains, teams.presets, teams.team.
"""

from upcall.teams.bridges import bridge
from upcall.teams.chains import Chain, branch, chain, fan_out
from upcall.teams.presets import SubAgent, coder_agent, deep_agent
from upcall.teams.team import Team

__all__ = ["Chain", "SubAgent", "Team", "branch", "bridge", "chain", "coder_agent", "deep_agent", "fan_out"]
