"""Agents that work together: teams with a plan, chains, bridges, and the agents people start from.

May import: teams.bridges, teams.chains, teams.team.
"""

from upcall.teams.bridges import bridge
from upcall.teams.chains import Chain, branch, chain, fan_out
from upcall.teams.team import Team

__all__ = ["Chain", "Team", "branch", "bridge", "chain", "fan_out"]
