"""The process that does one load, and says what came of it."""
