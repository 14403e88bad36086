"""What the machine gives at most: its disk, its memory, its bus."""
