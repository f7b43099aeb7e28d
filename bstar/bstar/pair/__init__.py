"""The Binary Star as a process runs it: sockets, files and timers around ``bstar.star``, and the arbiter."""
