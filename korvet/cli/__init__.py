"""The `korvet` command: parse what the operator wrote, make one call, print what came of it.

Knows flags, exit codes and tables; nothing of Kafka or Redis. Each command has a file of its own, and imports
what it calls only when it is called: `korvet --help` stays quick.
"""
