"""JSON-RPC 2.0 over lines of JSON, for both sides of a connection.

`Peer` answers the requests of the other side and sends its own; `stdio` carries lines over two file descriptors.
Everything that arrives is bounded before it is parsed.
"""
