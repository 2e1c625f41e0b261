"""Measures the budgets of the relay on real servers: `python -m bench`, or `make bench`.

| file | what is in it |
|---|---|
| `__main__.py` | which scenes to run, and how large |
| `scene.py` | what a scene is given, and what it hands back |
| `measure.py` | one measured figure, its budget and its verdict |
| `scenes/` | one module per scene |
| `rivals/` | what the relay is compared with |
| `fill.py`, `events.py` | rows and events of about 200 bytes |
| `relay_process.py`, `writers.py`, `watch.py` | the relay as users run it, its load, and when rows become durable |
| `results.py`, `report.py`, `plot.py`, `machine.py` | what the run writes down |

Figures are ratios within one run wherever that is possible: absolute rates depend on the machine.
"""
