"""The index beside a log: facts of every run tree, and full text that finds every script.

It is derived from the log, holds only redacted text, and can be deleted at any time: it is made again.
"""
