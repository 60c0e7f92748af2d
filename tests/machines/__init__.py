"""deploy/three-machines.md as an operator follows it.

Each machine is booted by systemd-nspawn: a systemd, a network with an address, and a file system of its own, whose
lower layer is this machine's. It needs root, and what `machines.NEEDED` names; a test says what is missing and fails.
"""
