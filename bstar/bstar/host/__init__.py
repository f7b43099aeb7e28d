"""What the machine gives a process: its memory, its service manager, files that are always whole."""
