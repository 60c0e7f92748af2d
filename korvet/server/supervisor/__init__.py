"""The supervisor: everything before the first fork, the processes of a broker, and their end."""
