"""bstar beside NATS and RabbitMQ, on one machine, in turns: see ``__main__``."""
