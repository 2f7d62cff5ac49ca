"""Models: scripts, OpenAI's and Anthropic's APIs, local files, and other providers. Imports nothing heavy."""

from upcall.models.anthropic import Anthropic
from upcall.models.anthropic_body import anthropic_body
from upcall.models.fallback import fallback_models
from upcall.models.local import Local
from upcall.models.names import resolve_model
from upcall.models.openai import OpenAIChat
from upcall.models.openai_body import openai_body
from upcall.models.script import Script, call
from upcall.models.structured import schema_in_instructions

__all__ = [
    "Anthropic",
    "Local",
    "OpenAIChat",
    "Script",
    "anthropic_body",
    "call",
    "fallback_models",
    "openai_body",
    "resolve_model",
    "schema_in_instructions",
]
