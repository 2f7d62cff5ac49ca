"""What `upcall demo` runs: ordinary agents, written as anybody would write them."""
