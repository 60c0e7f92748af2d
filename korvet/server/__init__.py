"""The processes of one broker: supervisor, workers, ops and keeper; connections and dispatch."""
