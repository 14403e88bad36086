"""Results as plain text: one file a result, each a function from the result and a Style to the whole text."""
