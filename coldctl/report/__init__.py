"""Pure renderers: a Result in, text or JSON out. Nothing here decides, reads or prints."""
