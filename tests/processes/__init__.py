"""A broker's processes: started, stopped, reloaded, replaced, and within their memory."""
