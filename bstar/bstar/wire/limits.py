"""The bounds of what bstar reads and writes, in one place, each with its reason."""

# Wire text, not code: a name is copied into metrics, logs and listings, so it stays short. One length byte
# in the native header carries it.
SERVICE_BYTES_MAX = 255

# The default of the configurable limit on the frames of one message. Each costs an object of some 50 bytes,
# so it bounds what a message of tiny frames takes beyond its bytes: 4 MiB.
FRAMES_MAX = 65_536

# The name of a worker in a listing, which a request to it alone carries. Ours have 16 bytes.
WORKER_NAME_BYTES_MAX = 64

# The name of a serial group: a customer, an account, a path. Each of its requests that waits carries it.
GROUP_CHARS_MAX = 128

# Frames that a client may put before the empty delimiter (REQ_CORRELATE puts one, a chain of proxies a few).
ENVELOPE_FRAMES_MAX = 8
# All of these: routing ids of libzmq have 255 bytes at most. No bound of a queue counts them, and a worker's
# stay for as long as it is registered.
ENVELOPE_BYTES_MAX = 255 * ENVELOPE_FRAMES_MAX

# The default of the configurable limit on one message, all frames together.
MESSAGE_BYTES_MAX = 64 * 1024 * 1024

# Extensions of one header: room for a trace context and its state many times over.
EXTENSIONS_BYTES_MAX = 8_192

# Headers of one request: a trace context, its baggage, and a program's own words. A table that each of them
# goes into must stay small.
HEADERS_MAX = 64
HEADER_NAME_BYTES_MAX = 128
# All of them as extensions; the rest of the room is for what the broker adds.
HEADERS_BYTES_MAX = 8_000

# What a worker tells of its process goes into listings: a host's name (Linux has 64 bytes), a release.
HOST_BYTES_MAX = 64
VERSION_BYTES_MAX = 32

# What a worker says of its service: room for the schemas of large bodies. Its texts are one line
# of a listing.
DESCRIPTION_BYTES_MAX = 65_536
DESCRIPTION_CHARS_MAX = 200
SERVICE_VERSION_CHARS_MAX = 64

# A text that travels in an ERROR or BUSY message is for people.
TEXT_BYTES_MAX = 4_096

# What a handler says of its progress: one line.
PROGRESS_TEXT_BYTES_MAX = 1_000

# The data of a declined request: some fields for its caller, not a reply.
DECLINED_DATA_BYTES_MAX = 65_536

# Rows of one batch. Each has a thousandth of a message's cost; more would only make the last ones wait.
BATCH_ROWS_MAX = 1_024

# Bytes of all bodies in one batch. Larger bodies gain nothing by travelling together.
BATCH_BYTES_MAX = 1 << 20

# A larger body is sent alone: a batch saves the cost of a message, and nothing of the cost of its bytes.
BATCHED_BODY_BYTES_MAX = 16_384

# Turns in a row of clients that had nothing waiting, in a queue of the broker or of a worker. Then one of the
# others is next, so no client starves (BSN-B-19, BSN-W-11).
FRESH_IN_A_ROW_MAX = 15

# Requests that one worker may hold at once.
CREDIT_MAX = 65_535

# The largest time to live that its field of 4 bytes holds: 49 days.
TTL_MS_MAX = 0xFFFF_FFFF

# Seconds between heartbeats. Below 10 ms the scheduler of an ordinary machine is louder; above 30 s the
# pair is not available in any useful sense.
HEARTBEAT_S_MIN = 0.01
HEARTBEAT_S_MAX = 30.0
