"""What the MCP client and the MCP server share: names of tools, forms, cleaned texts.

Plain JSON in the shapes of the protocol; the MCP library itself is not imported here.
"""
