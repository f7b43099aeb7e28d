"""What operators see of a node and order it to do: HTTP pages, metrics, control socket, role history."""
