"""The engine. Everything below is internal: programs import the modules beside this room."""
