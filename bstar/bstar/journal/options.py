"""A journal's options: its directory, its sample, its files and their bounds."""

import msgspec

from bstar.errors import ConfigurationError

MIB = 1024 * 1024
GIB = 1024 * MIB


class JournalOptions(msgspec.Struct, frozen=True):
    """The keys of the configuration's section ``journal`` mean the same; see configs/primary.yaml.

    ``directory`` is made when missing. ``sample`` is the share of requests that are recorded (0 to 1). A
    file is closed and another begun at ``rotate_bytes`` or after ``rotate_s`` seconds, then packed if
    ``gzip``. ``flush_interval_s`` is the longest that a record of a request waits to be written, and
    ``buffer_records`` how many records may wait. ``keep_bytes`` and ``keep_days`` bound what closed files
    this process's journal keeps; 0 keeps all. ``close_timeout_s`` bounds how long ``close`` takes.
    """

    directory: str
    sample: float = 1.0
    rotate_bytes: int = 64 * MIB
    rotate_s: float = 300.0
    gzip: bool = True
    flush_interval_s: float = 0.1
    buffer_records: int = 50_000
    keep_bytes: int = 10 * GIB
    keep_days: float = 30.0
    close_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("sample", 0, 1),
            ("rotate_bytes", 1024, 1 << 40),
            ("rotate_s", 0.1, 86_400),
            ("flush_interval_s", 0.001, 60),
            ("buffer_records", 16, 100_000_000),
            ("keep_bytes", 0, 1 << 60),
            ("keep_days", 0, 36_500),
            ("close_timeout_s", 0, 600),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigurationError(f"journal.{name}: {value!r} is not from {low} to {high}")
        if not self.directory:
            raise ConfigurationError("journal.directory: is empty; name a directory")
