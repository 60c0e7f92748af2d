"""The lake in object stores: a real server of S3's protocol on this machine, which can be stopped and killed."""
