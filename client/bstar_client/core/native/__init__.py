"""The session of a client in the native dialect."""
