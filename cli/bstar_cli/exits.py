"""The exit codes of ``bstar``, in one place; each verb's --help says the same for users."""

from bstar.errors import (
    BstarError,
    CallError,
    ConfigurationError,
    DurableError,
    HandlerError,
    LocalProtocolError,
    PairError,
    PipelineError,
    RejectedError,
)

OK = 0
FAILED = 1
"""What was asked for did not succeed, and it is said why: a handler failed, a node is missing."""
USAGE = 2
"""The command line, a variable or a configuration is wrong, or an extra is missing; nothing was begun."""
NOT_EXECUTED = 3
"""``call``: no worker began the request; sending it again is safe."""
UNKNOWN = 4
"""``call``: the request may have been executed; its reply is lost. ``switchover``: the role may move yet."""
PENDING = 5
"""``durable result``: the request has not ended yet."""
NONE_ACTIVE = 3
"""``status``: no node serves."""
MANY_ACTIVE = 4
"""``status``: more than one node serves."""
SERVICE_TROUBLE = 5
"""``status``: every pair is well, and a service is not."""
ASTRAY = 6
"""``status``: every pair is well, but services or nodes are at another pair than the list says."""
NOT_PROVEN = 3
"""``pipeline audit``: there is nothing to judge, or not all is proven and all must be."""
SPARK_FAILED = 5
"""``pipeline``: Spark could not do the job; nothing is said about the journals."""
OUTPUT_LOST = 74
"""Standard output cannot be written: a full disk, a closed descriptor (EX_IOERR of sysexits.h)."""
INTERRUPTED = 130
"""Ctrl-C, where that is not the ordinary way to stop."""
READER_GONE = 141
"""Who read standard output has left: 128 + SIGPIPE, as of programs that the signal ends."""


def code_of(error: BstarError) -> int:
    """The exit code for an error that ends the command. 70 to 73 are those of PairError."""
    if isinstance(error, PairError):
        return error.exit_code
    if isinstance(error, (ConfigurationError, LocalProtocolError)):
        return USAGE
    if isinstance(error, PipelineError):
        return SPARK_FAILED
    if isinstance(error, (DurableError, HandlerError, RejectedError)):
        return FAILED
    if isinstance(error, CallError):
        return UNKNOWN if error.may_have_executed else NOT_EXECUTED
    return FAILED
