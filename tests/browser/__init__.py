"""Browser tests: they come with the status page."""
