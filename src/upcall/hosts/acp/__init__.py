"""The Agent Client Protocol: an agent in an editor, over standard input and output.

`AcpAgent` answers an editor's requests. Each session of the editor is a session of the runtime; what happens in it
is sent as updates, and questions to the person are asked in the editor.
"""
