"""The process that forks all others; it never imports gevent.

supervisor    the loop: `on_<signal>`, drain
process_pool  slots and their children: fork, reap, restart, hang
reload        reads the configuration again, and restores it after a failure
rollout       replaces workers one after another, on a reload
child         the child's side of a fork, and its link to the supervisor
roles         what runs in each child
startup       what is there before the first fork: checks, ports, redis_check, the Runtime
"""
