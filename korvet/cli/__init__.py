"""The `korvet` command: parses flags, makes one call, prints the outcome as a table or JSON, sets the exit code.

Each noun has a file of its own, which imports what a command calls only when it runs: `korvet --help` stays quick.
"""
