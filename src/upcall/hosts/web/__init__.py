"""A person at a web page: the JSON API, the streams and the built page, as one ASGI application.

Everything that the log holds was written by models, tools and other people, so it is shown redacted and never
trusted. Reading and encoding happen in a thread of their own; the event loop only hands bytes to clients.
"""
