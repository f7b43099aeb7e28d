"""The sessions of EventMQ: a client and a job manager."""
