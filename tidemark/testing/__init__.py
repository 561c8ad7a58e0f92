"""Proof that a cluster keeps its promises to clients: a workload writes a history, and a checker
judges it.

    history    the lines of a history: sends, outcomes, reads, seeks, faults
    workload   producers and consumers that use the public clients and write a history
    rules      the promises; each is a pure function over the facts of a history
    facts      indexes over a history that the rules share
    checker    judges a history; `python -m tidemark.testing.checker FILE` prints the verdicts

The same workload and checker run in simulations and on real processes. A history is a file of JSON
lines, so a failed run is checked again without running again. The room promises that every history
of a correct cluster passes. A broken promise is named with the lines that show it.
"""
