"""The configuration: the definitions of settings and topic configs, and the values that a broker was given.

`sources.load` reads the sources once, at the top; the result is passed down, and nothing below the command line reads
the environment. Values that clients alter while brokers run are layered over it (dynamic.py).
"""
