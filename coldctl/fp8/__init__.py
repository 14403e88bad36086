"""FP8 embeddings: which tensors become FP8, by which convention, at which loss, and how they are written."""
