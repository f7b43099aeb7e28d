"""What a node writes into its journal."""

from bstar_broker.journal.node_journal import NodeJournal
from bstar_broker.journal.options import config_digest, open_journal, options_of

__all__ = ["NodeJournal", "config_digest", "open_journal", "options_of"]
