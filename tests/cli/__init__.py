"""The command `upcall`, run as people run it: in processes of its own."""
