"""What an append costs Redis' own CPU, as a ratio to plain XADD of the same payload: `python -m loadtest.append`.

`rows` makes what is sent, `server` starts a server and measures it, `measure` compares, `__main__` has flags and table.
"""
