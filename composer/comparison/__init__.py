"""What two recipes or runs have different, in the language of blocks."""
