"""PZQ: messages of producers wait in the durable store until a consumer acknowledges them."""
