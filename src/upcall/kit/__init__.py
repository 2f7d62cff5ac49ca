"""The built-in kits. Each function returns a `Kit` of hooks and tools for `Agent(kit=[...])`."""

from upcall.agent import Kit
from upcall.kit.approve import approve
from upcall.kit.budget import budget
from upcall.kit.compact import compact
from upcall.kit.evict import evict
from upcall.kit.instructions import add_instructions
from upcall.kit.log_calls import log_calls
from upcall.kit.memory import memory
from upcall.kit.prompt import prompt
from upcall.kit.rate_limit import rate_limit
from upcall.kit.skills import skills
from upcall.kit.stuck import stuck

__all__ = [
    "Kit",
    "add_instructions",
    "approve",
    "budget",
    "compact",
    "evict",
    "log_calls",
    "memory",
    "prompt",
    "rate_limit",
    "skills",
    "stuck",
]
