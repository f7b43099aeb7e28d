"""I/O threads of a ZeroMQ context, one for each other machine, so that one that is gone holds up no other.

libzmq looks a host name up in the I/O thread that connects. The call blocks until the name server answers or
the resolver gives up. For a container that is down, without a name server, that takes five to twenty seconds.
Whatever else that thread carries stands still meanwhile, on every attempt. With one I/O thread for all
(libzmq's default) the death of one node takes the connection to the other one with it.

So each socket that connects gets an I/O thread for itself while its context has enough. A context that the
user hands in is left as it is.
"""

import zmq

# Pairs have two nodes. A list of many more shares these; each thread costs a stack and two descriptors.
THREADS_MAX = 8
# A socket, the two ends of its monitor, a keepalive, and as much again while they are replaced.
_SOCKETS_PER_PLACE = 8


def new_context(places: int, *, owners: int = 1) -> "zmq.Context[zmq.Socket[bytes]]":
    """A context for sockets that connect to ``places`` places. All bound sockets count as one place.

    ``owners``: how many share it, each with its own socket for each place.
    """
    context = zmq.Context(io_threads=min(max(places, 1), THREADS_MAX))
    # libzmq's default is 1023, which a client of 170 pairs would reach.
    context.set(zmq.MAX_SOCKETS, max(context.get(zmq.MAX_SOCKETS), _SOCKETS_PER_PLACE * places * owners))
    return context


def keep_apart(socket: "zmq.Socket[bytes]", place: int) -> None:
    """Serve what the socket binds or connects from now on by the I/O thread of this place, from 0."""
    threads = socket.context.get(zmq.IO_THREADS)
    assert isinstance(threads, int)
    if threads > 1:
        socket.set(zmq.AFFINITY, 1 << (place % min(threads, 64)))
