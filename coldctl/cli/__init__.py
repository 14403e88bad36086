"""The command line: one file a subcommand, which parses, calls the job and renders."""
