"""The program of `upcall demo`: ordinary agents, as anybody would write them."""
