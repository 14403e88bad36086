"""What follows from the runs: pure functions of their figures."""
