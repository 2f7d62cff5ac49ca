"""Agents as tools of an MCP client: `upcall mcp`, over stdio or HTTP, in both eras of the protocol.

A call starts or continues a session, and waits for it a while. What an agent asks the person becomes a form in the
client. Everything that matters is in the log: a call whose server died is continued by the next server.
"""
