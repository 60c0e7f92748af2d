"""The console: pages in a browser on the ops port, and the JSON that they show.

It runs in the ops process and sends requests to the broker's own port as any other client would, each within seconds;
the state of processes it reads from their shared table. Nothing here imports gevent or Redis. Everyone who reaches the
port may read; changes require a token.
"""
