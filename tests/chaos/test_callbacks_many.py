"""Ten thousand questions that wait: what each costs in memory and on disk, and how quickly one goes on."""

from __future__ import annotations

from pathlib import Path

from chaos.asking import Place
from chaos.processes import driver
from chaos.stage import FULL

COUNT = 10_000 if FULL else 500
SPARE = 1 if FULL else 6
"""A few hundred do not outweigh what the first ones of a process cost: there the bounds are wider."""


def test_thousands_of_parked_callbacks_cost_little_and_any_of_them_continues_quickly(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.open("end")
    with driver("many", place.folder, COUNT, module="chaos.asking") as process:
        said = process.end()
    figures = {name: float(value) for name, value in (line.split() for line in said)}
    disk = sum(path.stat().st_size for path in tmp_path.glob("log.db*") if path.is_file()) / COUNT
    print(f"{COUNT} parked callbacks: {disk:.0f} bytes of disk each")
    for name, value in figures.items():
        print(f"  {name}: {value:g}")
    assert disk < 3000
    assert figures["memory_bytes"] < 1000 * SPARE
    assert figures["inbox_ms"] < 5 * 4
    assert figures["resume_cpu_ms"] < 20
    assert figures["idle_percent"] < 1
    assert figures["ready_ms"] < 200
    assert figures["ready"] == 1
