"""Throw-away adapters on public paths: what screens, editors and tool servers will be built on."""
